"""One trial, phase by phase: load, first step, settle, steady."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from tuner.build import Applied, Plan, apply
from tuner.kinds import FailureClass, Flag, Kind, Phase, Replay
from tuner.measured import Parity, PhaseRecord
from tuner.protocol import Event, TrialRequest
from tuner.worker import reentrant
from tuner.worker.clocks import WindowClocks, open_clocks
from tuner.worker.data import Batches, Loss, StepBatch
from tuner.worker.failure import NotWhatItSays, check_finite
from tuner.worker.health import CompileHealth
from tuner.worker.held import HeldMemory
from tuner.worker.load import import_libraries, load_model
from tuner.worker.measurement import Measurement
from tuner.worker.memory import Memory, set_cap
from tuner.worker.parity import ParityProbe
from tuner.worker.replay import Replays, replays_of
from tuner.worker.saved_state import SavedState, load_strictly
from tuner.worker.settle import QUIET
from tuner.worker.settling import Settling
from tuner.worker.snapshot import History
from tuner.worker.steps import Observer, Steps, Watch
from tuner.worker.window import Timed, first_steps, measure_window

FP16_RETRIES = 16
"""A scale of 2**16 is halved at each overflow; past 2**0 the gradients themselves are infinite."""


class Trial:
    """Runs the phases of one request and fills a `Measurement`.

    Args:
        request: in place of the measurement's own, by a twin test.
    """

    def __init__(self, measurement: Measurement, request: TrialRequest | None = None) -> None:
        self.m = measurement
        self.request = request or measurement.request
        # CUDA_VISIBLE_DEVICES leaves one card; some of torch's functions want its index.
        self.device = torch.device("cuda", 0) if self.request.device_type == "cuda" else torch.device("cpu")
        self.memory = Memory(self.device)
        self.held = HeldMemory(measurement, self.memory)
        self.model: nn.Module
        self.steps: Steps
        self.clocks: WindowClocks | None = None
        self._saved: SavedState | None = None
        self._ended = False
        """The last phase has been recorded; what fails after it failed in none."""
        self._slow_seconds: list[float] = []
        """Of all steps before `steady`: what they took beyond a steady step is the price of compiling."""

    def run(self) -> None:
        """Measure. Raises whatever training raises, or `NotWhatItSays`; the measurement keeps what was seen."""
        self.build()
        self.first_step()
        self.settle()
        self.steady()
        self.held.check()
        if due := replays_of(self.request.workload, self.model):
            self.longest_batch(due)
        self.end_phase()
        self._ended = True
        self.saved_state()

    def build(self) -> None:
        """Make all ready for the first step; the warm-up batch is run where the strategy has one."""
        self.load()
        if self.applied.warmup:
            self.enter(Phase.WARMUP_BATCH)
            self._slow_seconds.append(self.steps.warm_up())

    @property
    def applied(self) -> Applied:
        """The built strategy."""
        assert self.m.applied is not None
        return self.m.applied

    # Phases

    def enter(self, phase: Phase) -> None:
        """End the current phase and begin `phase`."""
        self.end_phase()
        self._ended = False
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
        if self._ended:
            return
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
        with self.m.detecting("saved_state"):
            self._saved = SavedState(self.model, self.m.notes)
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
        self.m.parity = self.first_full_step()
        self._check_truth(self.m.parity)

    def first_full_step(self, seed: int | None = None) -> Parity:
        """Train the first whole batch and return its loss and gradient.

        Args:
            seed: of the random numbers of the step; None: they come as they come.
        """
        with self.m.detecting("parity"):
            probe = ParityProbe(self.model)
        for _ in range(FP16_RETRIES):
            if seed is not None:
                torch.manual_seed(seed)
            scale = self.applied.scaler.get_scale()
            loss, seconds = self._timed_step(self.steps.batches.step(0), before_update=lambda: self._take(probe))
            self._slow_seconds.append(seconds)
            if self.applied.scaler.get_scale() >= scale:
                break  # else fp16 gradients overflowed, no parameter was changed and the scale was lowered
        with self.m.detecting("parity"):
            return probe.finish(loss)

    def _take(self, probe: ParityProbe) -> None:
        self.memory.synchronize()  # else the backward's time would be the detector's
        with self.m.detecting("parity"):
            probe.take()

    def _check_truth(self, parity: Parity) -> None:
        check_finite("loss", parity.loss, "the first step")
        check_finite("gradient norm", parity.gradient_norm, "the first step")
        if parity.gradient_norm == 0:
            detail = "no trainable parameter received a gradient"
            raise NotWhatItSays(FailureClass.WRONG_RESULT, Kind.NO_GRADIENT, detail)

    def settle(self) -> None:
        """Step until nothing is compiled or recorded any more and the times have levelled."""
        self.enter(Phase.SETTLE)
        Settling(self.m, self.model, self.steps, self.held, self._timed_step, self._slow_seconds).run()

    def _health(self) -> CompileHealth:
        assert self.m.health is not None
        return self.m.health

    def steady(self) -> None:
        """The timed windows: no synchronisation but one at the end of each, no detector, no recompile."""
        steps = self._steady_steps(Flag.NOISY in self.m.flags)
        self._note_fewer(steps)
        self.enter(Phase.STEADY)
        found = measure_window(self._window, steps, self.clocks, self.m)
        check_finite("loss", found.timed.loss, f"step {self.m.step} of steady")
        self.m.throughput = found.throughput()
        if self.m.compiles:
            median = self.m.throughput.step_seconds
            self.m.compile_seconds = max(0.0, sum(s - median for s in self._slow_seconds))

    def _window(self, count: int) -> Timed:
        before = self.m.step or 0
        with torch.compiler.set_stance("fail_on_recompile" if self.m.compiles else "default"):
            seconds, tokens, loss = self.steps.window(count, lambda number: self._at_step(before + number))
        self.held.note(self.m.step or 0)  # between the windows, never in one
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

    def longest_batch(self, due: tuple[Replay, ...]) -> None:
        """Replay what comes late: a recompile or another shape then lands on top of everything."""
        self.enter(Phase.LONGEST_BATCH)
        Replays(self.m, self.model, self.steps, self.memory).run(due)

    def saved_state(self) -> None:
        """Look whether what a run would save is a plain model's; after all that is measured.

        Raises:
            NotWhatItSays: it is not.
        """
        # From here on the parent samples no memory: what is done below belongs to no phase.
        self.m.emit(Event(time=time.time(), event="measured", phase=self.m.phase, step=self.m.step))
        with self.m.detecting("saved_state"):
            assert self._saved is not None
            fault = self._saved.fault(self.model)
            if fault is None:
                load_strictly(self.model, self.request.workload, self.m.notes)
        if fault is not None:
            raise NotWhatItSays(FailureClass.WRONG_RESULT, None, fault)

    def _timed_step(
        self,
        batch: StepBatch,
        before_update: Callable[[], None] | None = None,
        observe: Observer | None = None,
        watch: Watch | None = None,
    ) -> tuple[float, float]:
        loss, seconds = self.steps.timed(batch, before_update, observe, watch)
        self._health().step_ended()
        self.m.step = (self.m.step or 0) + 1
        self.m.emit(Event(time=time.time(), event="step", phase=self.m.phase, step=self.m.step, seconds=seconds))
        return loss, seconds
