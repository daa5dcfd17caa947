"""The phase `settle`: steps until nothing changes any more, then two that are looked at."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from typing import Protocol

from torch import nn

from strategies.knob import GRAPH_MODES
from tuner.build import scope_modules
from tuner.evidence import compile_fault
from tuner.kinds import FailureClass, Flag, Kind
from tuner.units import format_size
from tuner.worker.data import StepBatch
from tuner.worker.failure import NotWhatItSays, check_finite
from tuner.worker.health import CompileHealth
from tuner.worker.held import HeldMemory
from tuner.worker.inventory import StepWatch
from tuner.worker.measurement import Measurement
from tuner.worker.parity import FIRST_LOSSES, with_loss
from tuner.worker.settle import AT_MOST, QUIET, Observed, until_settled
from tuner.worker.snapshot import History
from tuner.worker.steps import Observer, Steps, Watch
from tuner.worker.window import first_steps

FRESH_BATCHES = 3
"""Steps that were not run yet: enough to see whether training would go on recording."""
GO_ON = 2
"""Of these so many have to record something: a list of lengths has a rare one that was not met."""


class TimedStep(Protocol):
    """Runs one synchronised optimizer step, counts and tells it; returns its loss and its seconds."""

    def __call__(
        self,
        batch: StepBatch,
        before_update: Callable[[], None] | None = None,
        observe: Observer | None = None,
        watch: Watch | None = None,
    ) -> tuple[float, float]: ...


class Settling:
    """Runs the phase; what it finds goes to the measurement and to `held`."""

    def __init__(
        self,
        m: Measurement,
        model: nn.Module,
        steps: Steps,
        held: HeldMemory,
        timed_step: TimedStep,
        slow_seconds: list[float],
    ) -> None:
        """`slow_seconds` gets the seconds of each step before `steady`."""
        self.m, self.model, self.steps, self.held = m, model, steps, held
        self.memory, self.timed_step, self.slow_seconds = steps.memory, timed_step, slow_seconds

    def run(self) -> None:
        """Step until nothing is compiled or recorded any more and the times have levelled.

        Raises:
            NotWhatItSays: it never settled, memory kept rising, or what was asked for is not compiled.
        """
        at_least = 4 if self.m.request.strategy["mode"] in GRAPH_MODES else 3
        found = until_settled(self._step, self._health().activity(), at_least, self.memory.rises_bytes)
        # Past the recompile limit nothing is compiled any more: that is what `_observe` says, with its step.
        if found.active and not self._health().report(0.0).recompile_limit_hit:
            guard = self._health().last_recompile()
            cause = f"recompiling: {guard}" if guard else "compiling or recording CUDA graphs"
            detail = f"in the last third of {AT_MOST} steps still {cause}"
            raise NotWhatItSays(FailureClass.UNSTABLE, None, detail)
        if found.rising:
            self.held.settled(found.held, self.m.settle_steps)
            self.held.check()
        if not found.level:
            self.m.flags.append(Flag.NOISY)
        self._meet_fresh_lengths()
        self._observe()
        self._take_stock()
        self.held.settled(found.held, self.m.step or 0)
        self.held.note(0)

    def _step(self, number: int) -> Observed:
        batch = self._batch(number)
        loss, seconds = self.timed_step(batch)
        check_finite("loss", loss, f"step {number + 1}")  # the first step is step 1
        if self.m.parity is not None and number < FIRST_LOSSES:
            self.m.parity = with_loss(self.m.parity, loss)
        self.m.settle_steps = number
        self.slow_seconds.append(seconds)
        return Observed(
            seconds,
            self._health().activity(),
            self.memory.held(),
            work=batch.positions,
            more_to_meet=self._has_more_to_meet(number),
        )

    def _batch(self, number: int) -> StepBatch:
        # The longest first: what it makes dynamo compile has to be there before `steady`, which refuses to.
        if not self.m.request.workload.lengths.vary:
            return self.steps.batches.step(number)
        return self.steps.batches.longest() if number == 1 else self.steps.batches.step(number - 1)

    def _has_more_to_meet(self, number: int) -> bool:
        """Will `steady` run batches that were not run in `number` steps? Only where lengths vary it matters."""
        if not self.m.request.workload.lengths.vary:
            return False
        typical = statistics.median(self.slow_seconds[-QUIET:])
        steady = first_steps(self.m.request, typical, self.steps.applied.accumulation, noisy=True)
        return number < min(self.steps.batches.distinct, steady)

    def _meet_fresh_lengths(self) -> None:
        """Refuse CUDA graphs that are recorded anew for each length: batches that repeat do not show it.

        Raises:
            NotWhatItSays: so it is.
        """
        if self.m.request.strategy["mode"] not in GRAPH_MODES or not self.m.request.workload.lengths.vary:
            return
        health = self._health()
        counts, held = [health.recorded_graphs()], self.memory.graph_pool_bytes()
        for index in range(FRESH_BATCHES):
            batch = self.steps.batches.fresh(index)
            for _ in range(2):  # the first call of a new shape only warms up
                self.timed_step(batch)
            counts.append(health.recorded_graphs())
        before, more = counts[0], counts[-1] - counts[0]
        recorded = sum(now > then for then, now in itertools.pairwise(counts))
        if recorded >= GO_ON:
            pools = self.memory.graph_pool_bytes()
            rose = "" if held is None or pools is None else f", and their pools rose by {format_size(pools - held)}"
            detail = (
                f"{FRESH_BATCHES} batches of lengths not met before had {more} CUDA graphs recorded{rose}: "
                f"training would go on recording ({before} before)"
            )
            raise NotWhatItSays(FailureClass.UNSTABLE, None, detail)
        if recorded:
            said = f"{recorded} of {FRESH_BATCHES} batches of lengths not met before had {more} CUDA graphs recorded"
            self.m.notes.append(f"settle: {said}")

    def _observe(self) -> None:
        """See which of the chosen modules really run compiled code; here, never in `steady`."""
        if not self.m.compiles:
            return
        modules = scope_modules(self.model, str(self.m.request.strategy["scope"]))
        health = self._health()
        with self.m.detecting("coverage"):
            self.timed_step(self.steps.batches.step(0), observe=lambda forward: health.observe(forward, modules))
        report = health.report(0.0)
        fault = compile_fault(report, routed=self.m.request.workload.is_moe)
        if fault is not None:
            kind = Kind.RECOMPILE_LIMIT if report.recompile_limit_hit else None
            raise NotWhatItSays(FailureClass.COMPILE_NOT_APPLIED, kind, fault)

    def _take_stock(self) -> None:
        """See in one more step what memory goes to; everything is compiled by now."""
        history, batches = self._history(), self.steps.batches
        batch = batches.longest() if self.m.request.workload.lengths.vary else batches.step(0)
        with self.m.detecting("memory_ledger"):
            if self.m.request.memory_snapshot:
                history.follow()
            at_forward = history.keep_step if self.m.request.memory_snapshot else None
            watch = StepWatch(self.memory, self.steps.applied, at_forward)
            self.timed_step(batch, watch=watch)
            self.m.memory = watch.ledger()
        history.stop()

    def _health(self) -> CompileHealth:
        assert self.m.health is not None
        return self.m.health

    def _history(self) -> History:
        assert self.m.history is not None
        return self.m.history
