"""D2: memory that rises every few steps until it runs out. The logic without a card; the rest is in tests/gpu."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.field_reports.running import run, users
from tests.tuner.trials import attempt, request
from tuner.kinds import KillReason, Phase
from tuner.outcome import Outcome, classify
from tuner.protocol import Event
from tuner.units import GIB, MIB
from tuner.worker.memory import Memory
from tuner.worker.steps import Steps


def holding(monkeypatch: pytest.MonkeyPatch, sizes: Iterator[int], room: int) -> None:
    """Hold so many MiB after each step, `room` MiB below the limit of 2**40 bytes."""
    monkeypatch.setattr(Memory, "held", lambda _: next(sizes) * MIB)
    monkeypatch.setattr(Memory, "taken", lambda *_: 2**40 - room * MIB)


def test_a_slope_that_has_not_levelled_is_unstable_and_says_when_the_budget_is_crossed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    holding(monkeypatch, itertools.count(1000, 40), room=3610)
    verdict = run(users("plain")).verdict()
    assert (verdict.outcome, verdict.phase) == (Outcome.UNSTABLE, Phase.SETTLE)
    assert verdict.detail == "memory rises by 40.0 MiB a step (95 %: 40.0 to 40.0); the limit is reached 90 steps later"


def test_it_is_seen_in_steady_although_settle_was_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    # 60 MiB with every third step, as new lengths do: three steps of settle pass, a proper measurement does not.
    monkeypatch.setattr("tuner.worker.settle.LEVEL", 100.0)
    monkeypatch.setattr("tuner.worker.window.KNOWN", -1.0)  # the median is never known well enough: more windows
    steps: list[int] = []
    real = Steps.run
    monkeypatch.setattr(Steps, "run", lambda self, *args: (steps.append(1), real(self, *args))[1])
    monkeypatch.setattr(Memory, "held", lambda _: (1000 + 60 * (len(steps) // 3)) * MIB)
    found = run(users("plain"))
    assert (found.verdict().outcome, found.verdict().phase) == (Outcome.UNSTABLE, Phase.STEADY)
    assert found.result.throughput is None and found.result.memory is not None
    assert found.result.memory.growth is not None and found.result.memory.growth.bytes_per_step > 16 * MIB


@pytest.mark.parametrize(
    "sizes",
    [
        [1000],
        [1000, 1000, 1000, 2000],  # grows once
        [500, 900, 1000, 1050, 1050],  # levels
    ],
)
def test_memory_that_levels_is_healthy(monkeypatch: pytest.MonkeyPatch, sizes: list[int]) -> None:
    holding(monkeypatch, itertools.chain(sizes, itertools.repeat(sizes[-1])), room=1000)
    assert run(users("plain")).verdict().outcome is Outcome.OK


def test_the_budget_is_crossed_at_a_step_of_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    window = Steps.window

    def run_out(self: Steps, count: int, done: Any) -> tuple[list[float], int, float]:
        def at(number: int) -> None:
            done(number)
            if number == 2:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 640.00 MiB. ")

        return window(self, count, at)

    monkeypatch.setattr(Steps, "window", run_out)
    found = run(users("plain"))
    failure, verdict = found.result.failure, found.verdict()
    assert failure is not None and failure.step == 3
    assert (verdict.outcome, verdict.phase) == (Outcome.OOM, Phase.STEADY)
    assert verdict.detail == "the allocator was asked for 640.00 MiB more, in step 3 of steady"


def test_a_worker_that_is_killed_at_its_limit_is_told_with_its_step() -> None:
    told = (Event(time=1.0, event="step", phase=Phase.SETTLE, step=7),)
    killed = attempt(
        request(limit_bytes=GIB), kill_reason=KillReason.MEMORY, exit_code=None, exit_signal=9, events=told
    )
    verdict = classify(killed)
    assert (verdict.outcome, verdict.phase) == (Outcome.OOM, Phase.SETTLE)
    assert verdict.detail.endswith("above the limit of 1.00 GiB (settle, after step 7)")
