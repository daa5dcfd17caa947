"""The twin test: two strategies in one process, one after the other, and what the same first step gives."""

from __future__ import annotations

import gc

import torch

from strategies.knob import GRAPH_MODES
from tuner.kinds import Phase
from tuner.measured import Parity
from tuner.protocol import TrialRequest
from tuner.worker.effect import no_graphs
from tuner.worker.measure import Trial
from tuner.worker.measurement import Measurement
from tuner.worker.replay import GRAPH_CALLS


class TwinTest:
    """Takes loss and gradient of one full batch under the request's `twin`, then under its strategy.

    Model, data and the random numbers of the step are the same: whatever differs is the strategy's.
    Where either records CUDA graphs the step is rehearsed, so that what is compared was replayed.
    """

    def __init__(self, measurement: Measurement) -> None:
        assert measurement.request.twin is not None
        self.m = measurement
        self.request = measurement.request
        self._trial: Trial | None = None
        """The one that holds the device; None between the two."""
        modes = {s["mode"] for s in (self.request.strategy, measurement.request.twin)}
        self._replayed = not modes.isdisjoint(GRAPH_MODES)

    def run(self) -> None:
        """Measure. Raises whatever training raises; the measurement keeps what was seen."""
        assert self.request.twin is not None
        self.m.twin_parity = self._first_step(self.request.model_copy(update={"strategy": self.request.twin}))
        self._forget()
        # The strategy comes last, so that what is reported of compiling is its own.
        self.m.parity = self._first_step(self.request)
        assert self._trial is not None
        self._trial.end_phase()
        if (why := no_graphs(self.m)) is not None:
            self.m.notes.append(f"the step that was compared is no replay: {why}")

    def end_failed_phase(self) -> None:
        """Record the peaks of the phase that an exception ended."""
        if self._trial is not None:
            self._trial.end_failed_phase()

    def _first_step(self, request: TrialRequest) -> Parity:
        trial = self._trial = Trial(self.m, request)
        trial.build()
        trial.enter(Phase.FIRST_STEP)
        for _ in range(GRAPH_CALLS - 1 if self._replayed else 0):
            torch.manual_seed(request.seed)
            trial.steps.rehearse(trial.steps.batches.step(0))
        return trial.first_full_step(request.seed)

    def _forget(self) -> None:
        """Give back all that the first of the two holds: the second has to have the device to itself."""
        if self.m.health is not None:
            self.m.health.close()
        self.m.health = self.m.applied = None
        self._trial = None
        gc.collect()
        torch._dynamo.reset()
        if torch.cuda.is_available():
            # torch 2.11 resets them only where a compiled backend was guarded on.
            from torch._inductor.cudagraph_trees import reset_cudagraph_trees

            reset_cudagraph_trees()
            gc.collect()
            torch.cuda.empty_cache()
