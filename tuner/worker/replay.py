"""What comes late in a training run, replayed before a strategy counts as feasible.

The longest batch, a partial one, an evaluation, a batch that a router sends to one expert: a late
recompile or another shape lands on top of everything that is held by then.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import nn

from tuner.kinds import FailureClass, Kind, Phase, Replay
from tuner.protocol import Event
from tuner.worker.data import StepBatch
from tuner.worker.failure import NotWhatItSays, check_finite
from tuner.worker.measurement import Measurement
from tuner.worker.memory import Memory
from tuner.worker.steps import Steps
from tuner.workload import Workload

GRAPH_CALLS = 3
"""A CUDA graph is recorded in the second call of a shape and replayed in the third."""


def replays_of(workload: Workload, model: nn.Module) -> tuple[Replay, ...]:
    """Return what there is to replay."""
    due = {
        Replay.LONGEST: workload.lengths.vary,
        Replay.SKEWED: workload.batch_fn is None and (workload.is_moe or has_experts(model)),
        Replay.PARTIAL: not workload.drop_last and workload.batch_size > 1,
        Replay.EVALUATION: workload.eval,
    }
    return tuple(replay for replay, is_due in due.items() if is_due)


def has_experts(model: nn.Module) -> bool:
    """Does the model's own config count experts? Of a hub's model the parent knows no config."""
    values = getattr(getattr(model, "config", None), "__dict__", {})
    counts = [value for name, value in values.items() if "experts" in name and not name.startswith("_")]
    return any(isinstance(count, int) and count > 1 for count in counts)


class Replays:
    """Runs the replays of one trial, one after the other."""

    def __init__(self, m: Measurement, model: nn.Module, steps: Steps, memory: Memory) -> None:
        self.m, self.model, self.steps, self.memory = m, model, steps, memory
        self.calls = GRAPH_CALLS if steps.applied.records_graphs else 1
        self._peak = memory.peak() or 0

    def run(self, due: tuple[Replay, ...]) -> None:
        """Replay all that is due. Raises whatever training raises, or `NotWhatItSays`; `m.replay` says in which."""
        run: dict[Replay, Callable[[], None]] = {
            Replay.LONGEST: lambda: self._train(self.steps.batches.longest()),
            Replay.SKEWED: lambda: self._train(self.steps.batches.skewed()),
            Replay.PARTIAL: self._partial,
            Replay.EVALUATION: self._evaluate,
        }
        for replay in due:
            self.m.replay = replay
            self.m.emit(Event(time=time.time(), event="note", phase=Phase.LONGEST_BATCH, note=replay.words))
            before = self._activity()
            run[replay]()
            self.memory.synchronize()
            self._look_back(replay, before)
        self.m.replay = None

    def _train(self, batch: StepBatch | None) -> None:
        if batch is None:
            return
        for _ in range(self.calls):
            loss = float(self.steps.run(batch))
            self.m.step = (self.m.step or 0) + 1
        check_finite("loss", loss, f"step {self.m.step} of longest_batch")

    def _partial(self) -> None:
        self._train(self.steps.batches.partial())
        self._train(self.steps.batches.step(0))

    def _evaluate(self) -> None:
        batch = self.steps.batches.evaluation()
        self.model.eval()
        try:
            with torch.no_grad():
                for _ in range(self.calls):
                    self.steps.evaluate(batch)
        finally:
            self.model.train()
        self._train(self.steps.batches.step(0))

    def _activity(self) -> tuple[int, int]:
        return self.m.health.activity() if self.m.health is not None else (0, 0)

    def _look_back(self, replay: Replay, before: tuple[int, int]) -> None:
        """Note the peak and what was compiled; past the recompile limit the rest of training would be eager."""
        self.m.replays.append(replay)
        peak = self.memory.peak() or 0
        if peak > self._peak:
            self._peak, self.m.peak_replay = peak, replay
        compiled, recorded = (now - then for now, then in zip(self._activity(), before, strict=True))
        if compiled or recorded:
            counts = f"{compiled} more graphs or recompiles, {recorded} more CUDA graphs"
            self.m.notes.append(f"longest_batch: {counts} {replay.words}")
        if self.m.compiles and self.m.health is not None and self.m.health.report(0.0).recompile_limit_hit:
            detail = "the recompile limit was hit, and calls past it ran eager"
            raise NotWhatItSays(FailureClass.COMPILE_NOT_APPLIED, Kind.RECOMPILE_LIMIT, detail)
