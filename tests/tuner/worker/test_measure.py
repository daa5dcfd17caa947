"""The phases of a trial: their order, what is timed in which, and what ends a trial early."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from tests.tuner.worker.workloads import measurement, shaped, users
from tuner.kinds import FailureClass, Flag, Kind, Phase
from tuner.protocol import Event
from tuner.units import MIB
from tuner.worker.failure import NotWhatItSays, classify_exception
from tuner.worker.health import CompileHealth
from tuner.worker.measure import Trial
from tuner.worker.measurement import Measurement
from tuner.worker.memory import Memory
from tuner.worker.settle import AT_MOST
from tuner.worker.steps import Steps
from tuner.workload import Lengths, Precision, Workload

SHORT = [Phase.START, Phase.LOAD, Phase.FIRST_STEP, Phase.SETTLE, Phase.STEADY]


def ran(workload: Workload, events: list[Event] | None = None, **strategy: Any) -> Measurement:
    made = measurement(workload, events, **strategy)
    Trial(made).run()
    return made


def ended(workload: Workload, **strategy: Any) -> tuple[Measurement, NotWhatItSays]:
    made = measurement(workload, **strategy)
    with pytest.raises(NotWhatItSays) as caught:
        Trial(made).run()
    return made, caught.value


def phases(made: Measurement) -> list[Phase]:
    return [record.phase for record in made.phases]


# Phases


def test_phases_in_order_and_each_with_its_peak() -> None:
    events: list[Event] = []
    made = ran(shaped(), events)
    assert phases(made) == SHORT
    assert [e.phase for e in events if e.event == "phase"] == SHORT[1:]
    assert all(record.device_bytes for record in made.phases)
    steps = {record.phase: record.steps for record in made.phases}
    assert steps[Phase.FIRST_STEP] == 1 and steps[Phase.SETTLE] >= 3
    assert made.throughput is not None and steps[Phase.STEADY] == made.throughput.steps >= 2
    assert sum(e.event == "step" for e in events) == 1 + steps[Phase.SETTLE]  # none in the timed window


def test_a_longest_batch_where_lengths_vary() -> None:
    made = ran(shaped(lengths=Lengths(kind="list", max=12, values=(4, 8, 12))))
    assert phases(made) == [*SHORT, Phase.LONGEST_BATCH]
    assert made.phases[-1].steps == 1


def test_a_warm_up_trains_nothing(quick_compile: None) -> None:
    strategy: dict[str, Any] = {"mode": "default", "scope": "layer", "dynamic": "true", "micro_batch": 4}
    warmed = ran(users(), **strategy, warmup_fraction=0.5)
    assert phases(warmed) == [*SHORT[:2], Phase.WARMUP_BATCH, *SHORT[2:]]
    torch._dynamo.reset()
    plain = ran(users(), **strategy)
    assert warmed.parity is not None and plain.parity is not None
    assert warmed.parity.loss == pytest.approx(plain.parity.loss, rel=1e-5)
    assert warmed.parity.gradient == pytest.approx(plain.parity.gradient, rel=1e-3, abs=1e-6)


def test_throughput_counts_real_tokens() -> None:
    made = ran(shaped(lengths=Lengths(kind="list", max=12, values=(4, 12))), micro_batch=8)
    assert made.throughput is not None
    assert 4 * 8 < made.throughput.tokens_per_step < 12 * 8
    assert made.throughput.step_seconds_p10 <= made.throughput.step_seconds <= made.throughput.step_seconds_p90


def test_every_strategy_starts_from_the_same_step(quick_compile: None) -> None:
    baseline = ran(shaped()).parity
    others = [
        ran(shaped(), micro_batch=4).parity,
        ran(shaped(), checkpointing="every-block").parity,
        ran(shaped(), mode="default", scope="layer", checkpointing="every-second-block").parity,
    ]
    assert baseline is not None and baseline.parameter_changed and baseline.tensors_without_gradient == 0
    for other in others:
        assert other is not None
        assert other.loss == pytest.approx(baseline.loss, rel=1e-5)
        assert other.gradient == pytest.approx(baseline.gradient, rel=1e-3, abs=1e-6)


# What is timed


def slow_steps(monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float], steady: float = 0.1) -> list[int]:
    """Give each step a made-up time, by the number of the call; `window`s are made of `steady`. Returns their sizes."""
    calls: list[int] = []
    windows: list[int] = []
    timed = Steps.timed

    def fake(self: Steps, *args: Any, **kwargs: Any) -> tuple[float, float]:
        calls.append(1)
        return timed(self, *args, **kwargs)[0], seconds.get(len(calls), steady)

    def window(self: Steps, count: int, done: Any) -> tuple[list[float], int, float]:
        windows.append(count)
        return [steady] * count, 128 * count, 1.0

    monkeypatch.setattr(Steps, "timed", fake)
    monkeypatch.setattr(Steps, "window", window)
    return windows


def test_compiling_is_in_no_throughput(monkeypatch: pytest.MonkeyPatch, quick_compile: None) -> None:
    slow_steps(monkeypatch, {1: 30.0, 2: 3.0})
    made = ran(shaped(), mode="default", scope="layer")
    assert made.throughput is not None
    assert made.throughput.tokens_per_s == pytest.approx(128 / 0.1)
    assert made.throughput.step_seconds == 0.1
    assert made.compile_seconds == pytest.approx(29.9 + 2.9)


def test_nothing_is_compiled_in_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    slow_steps(monkeypatch, {1: 30.0})
    assert ran(shaped()).compile_seconds == 0.0


def test_steady_lasts_as_long_as_it_has_to(monkeypatch: pytest.MonkeyPatch) -> None:
    windows = slow_steps(monkeypatch, {}, steady=0.001)
    ran(shaped())  # 0.01 seconds, 2 steps, 2 micro-batches
    windows_of_long_steps = slow_steps(monkeypatch, {}, steady=1.0)
    ran(shaped())
    assert windows == [10]
    assert windows_of_long_steps == [2, 2, 2], "of fewer than six steps nothing is known"


def test_times_that_never_level_are_noisy_and_widen_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    windows = slow_steps(monkeypatch, {n: 0.001 * (1 + n % 2) for n in range(100)}, steady=0.001)
    made = ran(shaped())
    assert made.flags == [Flag.NOISY]
    assert made.settle_steps == AT_MOST
    assert windows == [2 * 5]  # 0.01 seconds of steps of 0.002, twice


def test_the_number_of_a_step_goes_on_from_window_to_window(monkeypatch: pytest.MonkeyPatch) -> None:
    def window(self: Steps, count: int, done: Any) -> tuple[list[float], int, float]:
        for number in range(count):
            done(number + 1)
        return [1.0 + 0.1 * n for n in range(count)], 128 * count, 1.0

    slow_steps(monkeypatch, {}, steady=0.001)
    monkeypatch.setattr(Steps, "window", window)
    made = ran(shaped())
    assert made.throughput is not None and made.throughput.windows > 1
    assert made.phases[-1].steps == made.step == made.throughput.steps
    assert made.flags == [Flag.NOISY] and any("is known to" in note for note in made.notes)


# What ends a trial


@pytest.mark.parametrize("function", ["not_a_number"])
def test_nan(function: str) -> None:
    made, error = ended(users(function))
    assert (error.failure_class, error.kind) == (FailureClass.WRONG_RESULT, Kind.NAN)
    assert made.phase is Phase.FIRST_STEP and made.parity is not None


def test_no_gradient_at_all() -> None:
    made, error = ended(users("without_effect"))
    assert (error.failure_class, error.kind) == (FailureClass.WRONG_RESULT, Kind.NO_GRADIENT)
    assert made.throughput is None


def test_a_loss_that_hangs_on_nothing() -> None:
    made = measurement(users("without_gradient"))
    with pytest.raises(RuntimeError) as caught:
        Trial(made).run()
    failure = classify_exception(caught.value, made.phase, 1, False)
    assert (failure.failure_class, failure.kind) == (FailureClass.WRONG_RESULT, Kind.NO_GRADIENT)


@pytest.mark.parametrize("phase", [Phase.SETTLE, Phase.STEADY])
def test_a_loss_that_becomes_nan_later(monkeypatch: pytest.MonkeyPatch, phase: Phase) -> None:
    real = {"timed": Steps.timed, "window": Steps.window}

    calls: list[int] = []

    def timed(self: Steps, *args: Any, **kwargs: Any) -> tuple[float, float]:
        calls.append(1)
        loss, seconds = real["timed"](self, *args, **kwargs)  # type: ignore[operator]
        return (float("nan") if len(calls) == 3 and phase is Phase.SETTLE else loss), seconds

    def window(self: Steps, count: int, done: Any) -> tuple[list[float], int, float]:
        seconds, tokens, loss = real["window"](self, count, done)  # type: ignore[operator]
        return seconds, tokens, (float("nan") if phase is Phase.STEADY else loss)

    monkeypatch.setattr(Steps, "timed", timed)
    monkeypatch.setattr(Steps, "window", window)
    made, error = ended(shaped())
    assert (error.failure_class, error.kind, made.phase) == (FailureClass.WRONG_RESULT, Kind.NAN, phase)
    assert made.throughput is None


def test_a_failure_in_steady_knows_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    made = measurement(shaped())
    made.request = made.request.model_copy(update={"steady_steps": 5})
    real = Steps.window

    def window(self: Steps, count: int, done: Any) -> tuple[list[float], int, float]:
        def refuse(number: int) -> None:
            done(number)
            if number == 3:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")

        return real(self, count, refuse)

    monkeypatch.setattr(Steps, "window", window)
    with pytest.raises(torch.OutOfMemoryError):
        Trial(made).run()
    assert (made.phase, made.step) == (Phase.STEADY, 3)


def test_the_trap_is_not_applied(quick_compile: None) -> None:
    made, error = ended(users("trapped"), mode="default", scope="layer")
    assert error.failure_class is FailureClass.COMPILE_NOT_APPLIED and error.kind is None
    assert made.phase is Phase.SETTLE and made.throughput is None
    assert made.health is not None
    report = made.health.report(0.0)
    assert report.compiled_modules < report.chosen_modules == 2


def test_half_a_trap_is_not_applied(quick_compile: None) -> None:
    _, error = ended(users("half_trapped"), mode="default", scope="layer")
    assert error.failure_class is FailureClass.COMPILE_NOT_APPLIED
    assert error.detail == "compiled 1 of 2 chosen modules, the rest ran eager"


@pytest.mark.parametrize("scope", ["whole", "layer", "attention", "mlp"])
def test_every_scope_of_a_healthy_model_is_applied(quick_compile: None, scope: str) -> None:
    made = ran(shaped(), mode="default", scope=scope)
    assert made.health is not None and made.throughput is not None
    report = made.health.report(0.0)
    assert report.compiled_modules == report.chosen_modules == (1 if scope == "whole" else 2)
    assert report.graph_breaks == () and report.eager_ops == 0


def test_the_mlp_of_a_users_model_is_applied(quick_compile: None) -> None:
    # It is an nn.Sequential, which dynamo alone would skip.
    assert ran(users(), mode="default", scope="mlp").throughput is not None


def test_past_the_recompile_limit(quick_compile: None) -> None:
    lengths = Lengths(kind="list", max=15, values=tuple(range(2, 16)))
    _, error = ended(users(lengths=lengths), mode="default", scope="layer", dynamic="false", micro_batch=1)
    assert (error.failure_class, error.kind) == (FailureClass.COMPILE_NOT_APPLIED, Kind.RECOMPILE_LIMIT)


def test_what_compiles_for_ever_is_unstable(monkeypatch: pytest.MonkeyPatch, quick_compile: None) -> None:
    counts = iter(range(1000))
    monkeypatch.setattr(CompileHealth, "activity", lambda _: (next(counts), 0))
    made, error = ended(shaped(), mode="default", scope="layer")
    assert error.failure_class is FailureClass.UNSTABLE
    assert made.settle_steps == AT_MOST and f"in the last third of {AT_MOST} steps still " in error.detail


def test_a_leak_is_unstable(monkeypatch: pytest.MonkeyPatch) -> None:
    held = iter(range(0, 2**40, 32 * MIB))
    monkeypatch.setattr(Memory, "held", lambda _: next(held))
    monkeypatch.setattr(Memory, "taken", lambda *_: 2**40 - 979 * MIB)
    made, error = ended(shaped())
    assert (error.failure_class, error.kind) == (FailureClass.UNSTABLE, None)
    assert error.detail == "memory rises by 32.0 MiB a step (95 %: 32.0 to 32.0); the limit is reached 30 steps later"
    assert made.memory is not None and made.memory.growth is not None
    assert made.memory.growth.bytes_per_step == pytest.approx(32 * MIB)


def test_a_leak_that_shows_in_steady_alone_is_unstable(monkeypatch: pytest.MonkeyPatch) -> None:
    # The third step of settle looks healthy; ten steps of steady tell.
    held = itertools.chain([0, 20, 30, 50], itertools.count(290, 240))
    monkeypatch.setattr("tuner.worker.settle.LEVEL", 100.0)  # whatever else this machine does
    monkeypatch.setattr(Memory, "held", lambda _: next(held) * MIB)
    made = measurement(shaped())
    made.request = made.request.model_copy(update={"steady_steps": 10})
    with pytest.raises(NotWhatItSays) as caught:
        Trial(made).run()
    assert caught.value.failure_class is FailureClass.UNSTABLE and made.phase is Phase.STEADY
    assert caught.value.detail.startswith("memory rises by ")


@pytest.mark.parametrize("held", [[0, 0, 0, 500, 500, 500], [0, 0, 0, 0, 0, 900], [100, 200, 300, 300, 300, 300]])
def test_memory_that_grows_once_is_healthy(monkeypatch: pytest.MonkeyPatch, held: list[int]) -> None:
    left = iter(held)
    monkeypatch.setattr(Memory, "held", lambda _: next(left, held[-1]) * MIB)
    made = ran(shaped())
    assert made.throughput is not None and made.memory is not None and made.memory.growth is not None


def test_a_few_bytes_more_are_told_and_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    held = iter(range(0, 2**40, 512))
    monkeypatch.setattr(Memory, "held", lambda _: next(held))
    made = ran(shaped())
    assert made.throughput is not None and made.memory is not None and made.memory.growth is not None
    assert 0 < made.memory.growth.bytes_per_step <= 512


def test_settle_meets_what_steady_will_and_the_longest_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[Any] = []
    run, window = Steps.run, Steps.window

    def noted(self: Steps, batch: Any, *args: Any) -> Any:
        met.append(batch)
        return run(self, batch, *args)

    monkeypatch.setattr(Steps, "run", noted)
    at_steady: list[int] = []

    def counted(self: Steps, *args: Any) -> tuple[list[float], int, float]:
        at_steady.append(len(met))
        return window(self, *args)

    monkeypatch.setattr(Steps, "window", counted)
    made = measurement(shaped(lengths=Lengths(kind="list", max=40, values=(4, 5, 6, 7, 8)), batch_size=1))
    made.request = made.request.model_copy(update={"steady_steps": 16})
    Trial(made).run()
    before, after = met[: at_steady[0]], met[at_steady[0] :]
    assert before[1].tokens == 40  # the first of settle
    assert {id(batch) for batch in after[:-1]} <= {id(batch) for batch in before}
    assert len(after) > 16


def test_long_steps_are_fewer_in_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    windows = slow_steps(monkeypatch, {}, steady=50.0)
    made = measurement(shaped())
    made.request = made.request.model_copy(update={"steady_steps": 5})
    Trial(made).run()
    assert windows == [2]
    assert "steady: 2 optimizer steps in place of 5, as one takes 50 s" in made.notes
    windows = slow_steps(monkeypatch, {}, steady=500.0)
    assert ran(shaped()).notes == [] and windows == [2]  # two were asked for


def test_a_recompile_in_steady_is_unstable(monkeypatch: pytest.MonkeyPatch, quick_compile: None) -> None:
    def another_size(self: Steps, count: int, done: Any) -> tuple[list[float], int, float]:
        self.run(self.batches.longest())
        return [1.0], 1, 1.0

    monkeypatch.setattr(Steps, "window", another_size)
    monkeypatch.setattr("tuner.worker.data.Batches.longest", _longer)
    made = measurement(shaped(), mode="default", scope="layer")
    with pytest.raises(RuntimeError) as caught:
        Trial(made).run()
    failure = classify_exception(caught.value, made.phase, made.step, False)
    assert (failure.failure_class, failure.phase) == (FailureClass.UNSTABLE, Phase.STEADY)


def _longer(batches: Any) -> Any:
    batches.workload = batches.workload.model_copy(update={"lengths": Lengths.fixed(20)})
    return batches._make(0)


def test_fp16_that_overflows_at_first_is_no_wrong_result() -> None:
    made = ran(shaped(precision=Precision.FP16_MIXED))
    assert made.parity is not None and made.parity.parameter_changed
    plain = ran(shaped()).parity
    assert plain is not None and made.parity.gradient_norm == pytest.approx(plain.gradient_norm, rel=0.02)


def test_fp16_is_tried_again_with_a_lower_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    made = measurement(shaped(precision=Precision.FP16_MIXED))
    trial = Trial(made)
    trial.load()
    trial.applied._scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
    trial.first_step()
    assert trial.applied.scaler.get_scale() < 2.0**30
    assert made.parity is not None and made.parity.parameter_changed and made.parity.gradient_norm < 1e3
