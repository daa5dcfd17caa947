"""One trial, phase by phase: load, first step, settle, steady."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from strategies.knob import COMPILE_OFF, GRAPH_MODES
from tuner.build import Applied, Plan, apply, scope_modules
from tuner.protocol import (
    Event,
    FailureClass,
    Flag,
    Kind,
    Parity,
    Phase,
    PhaseRecord,
    Throughput,
    TrialRequest,
)
from tuner.worker.data import Batches, Loss, MicroBatch, StepBatch
from tuner.worker.failure import NotWhatItSays
from tuner.worker.health import CompileHealth
from tuner.worker.load import import_libraries, load_model
from tuner.worker.memory import Memory, set_cap
from tuner.worker.parity import ParityProbe

SETTLE_AT_MOST = 20
SETTLE_QUIET = 3
"""Steps in which nothing may be compiled, recorded or autotuned."""
SETTLE_SECONDS = 10.0
"""After so long a strategy that compiles nothing any more goes on to `steady`, level or not: where a
step takes seconds and the processor makes them uneven, twenty of them cost more than they tell."""
LEVEL = 0.05
"""How far a settled step may lie from the median of the last ones."""

EventSink = Callable[[Event], None]


@dataclass(slots=True)
class Measurement:
    """What has been measured so far; complete or not, the worker reports it."""

    request: TrialRequest
    emit: EventSink
    phase_started: float
    """Unix time at which the current phase began."""
    phase: Phase = Phase.START
    step: int | None = None
    """The optimizer step of the phase, from 1."""
    phases: list[PhaseRecord] = field(default_factory=list)
    flags: list[Flag] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    throughput: Throughput | None = None
    parity: Parity | None = None
    applied: Applied | None = None
    health: CompileHealth | None = None
    compile_seconds: float = 0.0
    model_seconds: float | None = None
    settle_steps: int = 0

    @property
    def compiles(self) -> bool:
        """Does the strategy compile anything?"""
        return self.request.strategy["mode"] != COMPILE_OFF


class Trial:
    """Runs the phases of one request and fills a `Measurement`."""

    def __init__(self, measurement: Measurement) -> None:
        self.m = measurement
        self.request = measurement.request
        # CUDA_VISIBLE_DEVICES leaves one card; some of torch's functions want its index.
        self.device = torch.device("cuda", 0) if self.request.device_type == "cuda" else torch.device("cpu")
        self.memory = Memory(self.device)
        self.batches: Batches
        self.loss: Loss
        self.model: nn.Module
        self._slow_seconds: list[float] = []
        """Of all steps before `steady`: what they took beyond a steady step is the price of compiling."""

    def run(self) -> None:
        """Measure. Raises whatever training raises, or `NotWhatItSays`; the measurement keeps what was seen."""
        self.load()
        if self.applied.warmup:
            self.warm_up(self.applied.warmup)
        self.first_step()
        self.settle()
        self.steady()
        if self.request.workload.lengths.vary:
            self.longest_batch()
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
        peaks = self.memory.take()
        self.m.phases.append(
            PhaseRecord(
                phase=self.m.phase,
                seconds=time.time() - self.m.phase_started,
                allocated_bytes=peaks.allocated_bytes,
                reserved_bytes=peaks.reserved_bytes,
                device_bytes=peaks.device_bytes,
                alloc_retries=peaks.alloc_retries,
                steps=self.m.step or 0,
            )
        )

    def load(self) -> None:
        """Put the model on the device, and the strategy on the model."""
        import_libraries(self.request.workload)
        self.enter(Phase.LOAD)
        request, strategy = self.request, self.request.strategy
        if request.cap_bytes is not None:
            set_cap(request.cap_bytes, self.device)
        self.m.health = CompileHealth(self.m.compiles, wants_plan=float(strategy["activation_memory_budget"]) < 1)
        self.model = load_model(request.workload, self.device, request.seed)
        self.m.model_seconds = time.time() - self.m.phase_started + self.m.phases[0].seconds
        self.m.applied = apply(self.model, Plan(strategy=strategy, workload=request.workload))
        self.loss = Loss(request.workload, self.model)
        self.batches = Batches(request.workload, self.model, self.device, self.applied.micro_batch, request.seed)
        self.batches.prepare()

    def warm_up(self, rows: int) -> None:
        """Run a small batch forward and backward and drop its gradients: it trains nothing."""
        self.enter(Phase.WARMUP_BATCH)
        started = time.perf_counter()
        with self.applied.forward():
            loss = self.loss(self.batches.warmup(rows))
        loss.backward()
        del loss
        self.applied.zero_grad()
        self.memory.synchronize()
        self._slow_seconds.append(time.perf_counter() - started)

    def first_step(self) -> None:
        """The first full step: compiles, and is compared with the reference's."""
        self.enter(Phase.FIRST_STEP)
        probe = ParityProbe(self.model)
        loss, seconds = self.timed_step(0, before_update=probe.take)
        self._slow_seconds.append(seconds)
        self.m.parity = probe.finish(loss)
        self._check_truth(self.m.parity)

    def _check_truth(self, parity: Parity) -> None:
        if not math.isfinite(parity.loss) or parity.loss > 1e300 or parity.gradient_norm > 1e300:
            raise NotWhatItSays(FailureClass.WRONG_RESULT, Kind.NAN, "the first step's loss or gradient is not a finite number")
        if parity.gradient_norm == 0:
            raise NotWhatItSays(FailureClass.WRONG_RESULT, Kind.NO_GRADIENT, "no trainable parameter received a gradient")

    def settle(self) -> None:
        """Step until nothing is compiled or recorded any more and the times have levelled."""
        self.enter(Phase.SETTLE)
        at_least = 4 if self.request.strategy["mode"] in GRAPH_MODES else 3
        seconds: list[float] = []
        health, quiet = self._health(), 0
        before = health.activity()
        while True:
            seconds.append(self.timed_step(len(seconds) + 1)[1])
            now = health.activity()
            quiet, before = (quiet + 1 if now == before else 0), now
            self.m.settle_steps = len(seconds)
            if len(seconds) >= at_least and quiet >= SETTLE_QUIET and _level(seconds):
                break
            long_enough = len(seconds) >= at_least and quiet >= SETTLE_QUIET and sum(seconds) >= SETTLE_SECONDS
            if len(seconds) >= SETTLE_AT_MOST or long_enough:
                self._never_settled(quiet)
                break
        self._slow_seconds += seconds
        self._observe(len(seconds) + 1)

    def _never_settled(self, quiet: int) -> None:
        if quiet >= SETTLE_QUIET:
            self.m.flags.append(Flag.NOISY)
            return
        guard = self._health().last_recompile()
        cause = f"still recompiling: {guard}" if guard else "still recording CUDA graphs"
        raise NotWhatItSays(FailureClass.UNSTABLE, None, f"after {SETTLE_AT_MOST} steps {cause}")

    def _health(self) -> CompileHealth:
        assert self.m.health is not None
        return self.m.health

    def _observe(self, index: int) -> None:
        """See which of the chosen modules really run compiled code; in `settle`, never in `steady`."""
        if not self.m.compiles:
            return
        scope = str(self.request.strategy["scope"])
        modules = scope_modules(self.model, scope)
        health = self._health()
        self.timed_step(index, observe=lambda forward: health.observe(forward, modules, scope == "whole"))
        report = health.report(0.0)
        silent = report.eager_ops and not report.graph_breaks
        if report.compiled_modules == report.chosen_modules and not silent:
            return
        kind = Kind.RECOMPILE_LIMIT if report.recompile_limit_hit else None
        rest = "ran eager after the recompile limit" if kind else "ran eager"
        detail = f"{report.compiled_modules} of {report.chosen_modules} modules of scope {scope} compiled, the rest {rest}"
        if silent:
            detail = f"{report.eager_ops} matrix products of a forward ran outside compiled code, without a graph break to explain it"
        raise NotWhatItSays(FailureClass.COMPILE_NOT_APPLIED, kind, detail)

    def steady(self) -> None:
        """The timed window: no synchronisation but one at the end, no detector, no recompile."""
        typical = statistics.median(self._slow_seconds[-SETTLE_QUIET:])
        request, accumulation = self.request, self.applied.accumulation
        steps = max(
            request.steady_steps,
            math.ceil(request.steady_micro_batches / accumulation),
            math.ceil(request.steady_seconds / max(typical, 1e-4)),
        )
        self.enter(Phase.STEADY)
        with torch.compiler.set_stance("fail_on_recompile" if self.m.compiles else "default"):
            seconds, tokens = self._window(steps)
        median = statistics.median(seconds)
        self.m.throughput = Throughput(
            tokens_per_s=tokens / sum(seconds),
            step_seconds=median,
            step_seconds_p10=_quantile(seconds, 0.1),
            step_seconds_p90=_quantile(seconds, 0.9),
            steps=steps,
            tokens_per_step=tokens / steps,
        )
        if self.m.compiles:
            self.m.compile_seconds = max(0.0, sum(s - median for s in self._slow_seconds))

    def _window(self, steps: int) -> tuple[list[float], int]:
        """Return the seconds of each step, and the tokens of all."""
        tokens = 0
        marks = [self._mark()]
        for index in range(steps):
            batch = self.batches.step(index)
            self._step(batch)
            tokens += batch.tokens
            self.m.step = index + 1
            marks.append(self._mark())
        self.memory.synchronize()
        return [_between(a, b) for a, b in zip(marks, marks[1:], strict=False)], tokens

    def _mark(self) -> torch.cuda.Event | float:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def longest_batch(self) -> None:
        """Replay a step of nothing but the longest sequences: a late recompile lands on top of everything."""
        self.enter(Phase.LONGEST_BATCH)
        self._step(self.batches.longest())
        self.m.step = 1

    # Steps

    def timed_step(
        self,
        index: int,
        before_update: Callable[[], None] | None = None,
        observe: Callable[[Callable[[], torch.Tensor]], torch.Tensor] | None = None,
    ) -> tuple[float, float]:
        """Run one synchronised optimizer step; return its mean loss and its seconds."""
        started = time.perf_counter()
        loss = self._step(self.batches.step(index), before_update, observe)
        self.memory.synchronize()
        seconds = time.perf_counter() - started
        self.m.step = (self.m.step or 0) + 1
        self.m.emit(Event(time=time.time(), event="step", phase=self.m.phase, step=self.m.step, seconds=seconds))
        return float(loss), seconds

    def _step(
        self,
        batch: StepBatch,
        before_update: Callable[[], None] | None = None,
        observe: Callable[[Callable[[], torch.Tensor]], torch.Tensor] | None = None,
    ) -> torch.Tensor:
        total = torch.zeros((), device=self.device)
        with self.applied.step() as step:
            step.before_update = before_update
            for number, micro_batch in enumerate(batch.micro_batches):
                loss = self._forward(micro_batch, observe if number == 0 else None)
                total += loss.detach()  # copied at once: a CUDA graph's output is overwritten by the next replay
                step.backward(loss)
                del loss
        return total

    def _forward(
        self, micro_batch: MicroBatch, observe: Callable[[Callable[[], torch.Tensor]], torch.Tensor] | None
    ) -> torch.Tensor:
        with self.applied.forward():
            if observe is None:
                return self.loss(micro_batch)
            return observe(lambda: self.loss(micro_batch))


def _level(seconds: list[float]) -> bool:
    """Are the last three within 5 % of the median of the last five?"""
    median = statistics.median(seconds[-5:])
    return all(abs(s - median) <= LEVEL * median for s in seconds[-SETTLE_QUIET:])


def _between(first: torch.cuda.Event | float, second: torch.cuda.Event | float) -> float:
    if isinstance(first, float):
        assert isinstance(second, float)
        return second - first
    assert not isinstance(second, float)
    return float(first.elapsed_time(second)) / 1000


def _quantile(values: list[float], fraction: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(fraction * (len(ordered) - 1)))]
