"""One trial, phase by phase: load, first step, settle, steady."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from strategies.knob import GRAPH_MODES
from tuner.build import Applied, Plan, apply, scope_modules
from tuner.evidence import compile_fault
from tuner.kinds import FailureClass, Flag, Kind, Phase, Replay
from tuner.measured import Growth, MemoryLedger, Parity, PhaseRecord
from tuner.protocol import Event
from tuner.worker import reentrant
from tuner.worker.clocks import WindowClocks, open_clocks
from tuner.worker.data import Batches, Loss, StepBatch
from tuner.worker.failure import NotWhatItSays
from tuner.worker.growth import Held, growth_of, growth_words, steps_left, still_rises
from tuner.worker.health import CompileHealth
from tuner.worker.inventory import StepWatch
from tuner.worker.load import import_libraries, load_model
from tuner.worker.measurement import Measurement
from tuner.worker.memory import Memory, set_cap
from tuner.worker.parity import ParityProbe
from tuner.worker.replay import Replays, replays_of
from tuner.worker.settle import AT_MOST, QUIET, Observed, until_settled
from tuner.worker.snapshot import History
from tuner.worker.steps import Observer, Steps
from tuner.worker.window import Timed, first_steps, measure_window

FP16_RETRIES = 16
"""A scale of 2**16 is halved at each overflow; past 2**0 the gradients themselves are infinite."""


class Trial:
    """Runs the phases of one request and fills a `Measurement`."""

    def __init__(self, measurement: Measurement) -> None:
        self.m = measurement
        self.request = measurement.request
        # CUDA_VISIBLE_DEVICES leaves one card; some of torch's functions want its index.
        self.device = torch.device("cuda", 0) if self.request.device_type == "cuda" else torch.device("cpu")
        self.memory = Memory(self.device)
        self.model: nn.Module
        self.steps: Steps
        self.clocks: WindowClocks | None = None
        self._slow_seconds: list[float] = []
        """Of all steps before `steady`: what they took beyond a steady step is the price of compiling."""
        self._held: list[Held] = []
        """What was held after the steps of `settle` that compiled nothing more, and after each window of `steady`."""
        self._settled_in = 0
        """Steps of `settle`."""

    def run(self) -> None:
        """Measure. Raises whatever training raises, or `NotWhatItSays`; the measurement keeps what was seen."""
        self.load()
        if self.applied.warmup:
            self.enter(Phase.WARMUP_BATCH)
            self._slow_seconds.append(self.steps.warm_up())
        self.first_step()
        self.settle()
        self.steady()
        self.check_growth()
        if due := replays_of(self.request.workload, self.model):
            self.longest_batch(due)
        self.end_phase()

    @property
    def applied(self) -> Applied:
        """The built strategy."""
        assert self.m.applied is not None
        return self.m.applied

    # Phases

    def enter(self, phase: Phase) -> None:
        """End the current phase and begin `phase`."""
        self.end_phase()
        self.m.phase, self.m.step, self.m.phase_started = phase, None, time.time()
        self.m.emit(Event(time=self.m.phase_started, event="phase", phase=phase))

    def end_phase(self) -> None:
        """Record the peaks of the current phase and reset them."""
        self.memory.synchronize()
        seconds = time.time() - self.m.phase_started
        with self.m.detecting("graph_pools") if self.memory.records_graphs else contextlib.nullcontext():
            pools = self.memory.graph_pool_bytes()
        peaks = self.memory.take()
        self.m.phases.append(
            PhaseRecord(
                phase=self.m.phase,
                seconds=seconds,
                allocated_bytes=peaks.allocated_bytes,
                reserved_bytes=peaks.reserved_bytes,
                device_bytes=peaks.device_bytes,
                alloc_retries=peaks.alloc_retries,
                ooms=peaks.ooms,
                graph_pool_bytes=pools,
                steps=self.m.step or 0,
            )
        )

    def end_failed_phase(self) -> None:
        """Record the peaks of the phase that an exception ended; how far it came is what a person asks."""
        try:
            self.end_phase()
        except RuntimeError as error:  # a device error that stays: nothing answers any more
            self.m.notes.append(f"the device did not answer after the failure ({type(error).__name__})")

    def load(self) -> None:
        """Put the model on the device, and the strategy on the model."""
        import_libraries(self.request.workload)
        reentrant.watch()
        self.enter(Phase.LOAD)
        with self.m.detecting("clocks"):  # NVML starts here, and not in a window
            self.clocks = open_clocks(self.request.device_uuid, self.m.notes)
        request, strategy = self.request, self.request.strategy
        if request.cap_bytes is not None:
            set_cap(request.cap_bytes, self.device)
        self.m.history = History(self.device, self.m.folder, request.cache_dir)
        self.m.history.start()
        self.m.health = CompileHealth(self.m.compiles, wants_plan=float(strategy["activation_memory_budget"]) < 1)
        self.model = load_model(request.workload, self.device, request.seed, self.m.notes)
        self.m.model_seconds = time.time() - self.m.phase_started + self.m.phases[0].seconds
        self.m.applied = apply(self.model, Plan(strategy=strategy, workload=request.workload))
        self.memory.records_graphs = self.applied.records_graphs
        if self.applied.records_graphs and not request.memory_snapshot:
            # torch itself warns of it (cudagraph_trees.get_history_recording: "prevents cleanup").
            self.m.history.stop()
        batches = Batches(request.workload, self.model, self.device, self.applied.micro_batch, request.seed)
        batches.prepare()
        self.steps = Steps(self.applied, batches, Loss(request.workload, self.model, self.m.compiles), self.memory)

    def first_step(self) -> None:
        """The first full step: compiles, and is compared with the reference's."""
        self.enter(Phase.FIRST_STEP)
        probe = ParityProbe(self.model)
        for _ in range(FP16_RETRIES):
            scale = self.applied.scaler.get_scale()
            loss, seconds = self._timed_step(self.steps.batches.step(0), before_update=probe.take)
            self._slow_seconds.append(seconds)
            if self.applied.scaler.get_scale() >= scale:
                break  # else fp16 gradients overflowed, no parameter was changed and the scale was lowered
        self.m.parity = probe.finish(loss)
        self._check_truth(self.m.parity)

    def _check_truth(self, parity: Parity) -> None:
        _check_finite("loss", parity.loss, "the first step")
        _check_finite("gradient norm", parity.gradient_norm, "the first step")
        if parity.gradient_norm == 0:
            detail = "no trainable parameter received a gradient"
            raise NotWhatItSays(FailureClass.WRONG_RESULT, Kind.NO_GRADIENT, detail)

    def settle(self) -> None:
        """Step until nothing is compiled or recorded any more and the times have levelled."""
        self.enter(Phase.SETTLE)
        at_least = 4 if self.request.strategy["mode"] in GRAPH_MODES else 3
        found = until_settled(self._settle_step, self._health().activity(), at_least, self.memory.rises_bytes)
        if found.active:
            guard = self._health().last_recompile()
            cause = f"still recompiling: {guard}" if guard else "still compiling or recording CUDA graphs"
            raise NotWhatItSays(FailureClass.UNSTABLE, None, f"after {AT_MOST} steps {cause}")
        growth = growth_of(found.held)
        if found.rising and growth is not None:
            self.m.memory = MemoryLedger(growth=growth)
            raise NotWhatItSays(FailureClass.UNSTABLE, None, self._growing(growth))
        if not found.level:
            self.m.flags.append(Flag.NOISY)
        self._observe()
        self._take_stock()
        self._held, self._settled_in = list(found.held), self.m.step or 0
        self._note_held(self._settled_in)

    def _settle_step(self, number: int) -> Observed:
        batch = self._settle_batch(number)
        loss, seconds = self._timed_step(batch)
        _check_finite("loss", loss, f"step {number} of settle")
        self.m.settle_steps = number
        self._slow_seconds.append(seconds)
        return Observed(
            seconds,
            self._health().activity(),
            self.memory.held(),
            work=batch.positions,
            more_to_meet=self._has_more_to_meet(number),
        )

    def _settle_batch(self, number: int) -> StepBatch:
        # The longest first: what it makes dynamo compile has to be there before `steady`, which refuses to.
        batches = self.steps.batches
        if not self.request.workload.lengths.vary:
            return batches.step(number)
        return batches.longest() if number == 1 else batches.step(number - 1)

    def _has_more_to_meet(self, number: int) -> bool:
        """Will `steady` run batches that were not run in `number` settle steps? Only where lengths vary it matters."""
        if not self.request.workload.lengths.vary:
            return False
        return number < min(self.steps.batches.distinct, self._steady_steps(noisy=True))

    def _health(self) -> CompileHealth:
        assert self.m.health is not None
        return self.m.health

    def _observe(self) -> None:
        """See which of the chosen modules really run compiled code; in `settle`, never in `steady`."""
        if not self.m.compiles:
            return
        modules = scope_modules(self.model, str(self.request.strategy["scope"]))
        health = self._health()
        with self.m.detecting("coverage"):
            self._timed_step(self.steps.batches.step(0), observe=lambda forward: health.observe(forward, modules))
        report = health.report(0.0)
        fault = compile_fault(report, routed=self.request.workload.is_moe)
        if fault is not None:
            kind = Kind.RECOMPILE_LIMIT if report.recompile_limit_hit else None
            raise NotWhatItSays(FailureClass.COMPILE_NOT_APPLIED, kind, fault)

    def _take_stock(self) -> None:
        """See in one more step what memory goes to; everything is compiled by now."""
        history, batches = self._history(), self.steps.batches
        batch = batches.longest() if self.request.workload.lengths.vary else batches.step(0)
        with self.m.detecting("memory_ledger"):
            if self.request.memory_snapshot:
                history.follow()
            at_forward = history.keep_step if self.request.memory_snapshot else None
            watch = StepWatch(self.memory, self.applied, at_forward)
            self._timed_step(batch, watch=watch)
            self.m.memory = watch.ledger()
        history.stop()

    def _history(self) -> History:
        assert self.m.history is not None
        return self.m.history

    def steady(self) -> None:
        """The timed windows: no synchronisation but one at the end of each, no detector, no recompile."""
        steps = self._steady_steps(Flag.NOISY in self.m.flags)
        self._note_fewer(steps)
        self.enter(Phase.STEADY)
        found = measure_window(self._window, steps, self.clocks, self.m)
        _check_finite("loss", found.timed.loss, f"step {self.m.step} of steady")
        self.m.throughput = found.throughput()
        if self.m.compiles:
            median = self.m.throughput.step_seconds
            self.m.compile_seconds = max(0.0, sum(s - median for s in self._slow_seconds))

    def _window(self, count: int) -> Timed:
        before = self.m.step or 0
        with torch.compiler.set_stance("fail_on_recompile" if self.m.compiles else "default"):
            seconds, tokens, loss = self.steps.window(count, lambda number: self._at_step(before + number))
        self._note_held(self._settled_in + (self.m.step or 0))  # between the windows, never in one
        work = tuple(self.steps.batches.step(index).positions for index in range(len(seconds)))
        return Timed(tuple(seconds), work, tokens, loss)

    def _at_step(self, number: int) -> None:
        self.m.step = number

    def _steady_steps(self, noisy: bool) -> int:
        typical = statistics.median(self._slow_seconds[-QUIET:])
        return first_steps(self.request, typical, self.applied.accumulation, noisy)

    def _note_fewer(self, steps: int) -> None:
        if steps < self.request.steady_steps:
            seconds = statistics.median(self._slow_seconds[-QUIET:])
            wanted = self.request.steady_steps
            self.m.notes.append(f"steady: {steps} optimizer steps in place of {wanted}, as one takes {seconds:.0f} s")

    def _note_held(self, step: int) -> None:
        if (held := self.memory.held()) is not None:
            self._held.append((step, held))

    def check_growth(self) -> None:
        """See whether memory rose from `settle` to the end of `steady`."""
        growth = growth_of(self._held)
        self.m.memory = (self.m.memory or MemoryLedger()).model_copy(update={"growth": growth})
        if growth is not None and still_rises(self._held, self.memory.rises_bytes):
            raise NotWhatItSays(FailureClass.UNSTABLE, None, self._growing(growth))

    def _growing(self, growth: Growth) -> str:
        """Return the rise in words, and how long it can last: too short a measurement would have passed."""
        taken = self.memory.taken(self.request.base_line_bytes or 0)
        left = None if taken is None else steps_left(growth, self.request.limit_bytes - taken)
        return growth_words(growth) + ("" if left is None else f"; the limit is reached {left:,} steps later")

    def longest_batch(self, due: tuple[Replay, ...]) -> None:
        """Replay what comes late: a recompile or another shape then lands on top of everything."""
        self.enter(Phase.LONGEST_BATCH)
        Replays(self.m, self.model, self.steps, self.memory).run(due)

    def _timed_step(
        self,
        batch: StepBatch,
        before_update: Callable[[], None] | None = None,
        observe: Observer | None = None,
        watch: StepWatch | None = None,
    ) -> tuple[float, float]:
        loss, seconds = self.steps.timed(batch, before_update, observe, watch)
        self._health().step_ended()
        self.m.step = (self.m.step or 0) + 1
        self.m.emit(Event(time=time.time(), event="step", phase=self.m.phase, step=self.m.step, seconds=seconds))
        return loss, seconds


def _check_finite(name: str, value: float, where: str) -> None:
    # 1e308 stands for "not finite" in a `Parity`.
    if not abs(value) < 1e300:
        raise NotWhatItSays(FailureClass.WRONG_RESULT, Kind.NAN, f"the {name} of {where} is not a finite number")
