"""Rising memory: the slope and its interval, what is a leak and what grows once."""

from __future__ import annotations

import random

import pytest

from tuner.measured import Growth
from tuner.units import MIB
from tuner.worker.growth import (
    ALLOCATED_RISES_BYTES,
    RESIDENT_RISES_BYTES,
    growth_of,
    growth_words,
    steps_left,
    still_rises,
)


def held(*mib: float, steady: int = 0) -> list[tuple[int, int]]:
    """Points of one step each; `steady`: the last one is so many steps later."""
    points = [(number, int(size * MIB)) for number, size in enumerate(mib, 1)]
    return [*points[:-1], (points[-1][0] + steady, points[-1][1])]


def test_slope_and_interval_are_those_of_a_textbook() -> None:
    # y = 2, 4, 5, 4, 5 at x = 1 to 5: slope 0.6, standard error 0.2828, t(3) = 3.182.
    found = growth_of([(1, 2), (2, 4), (3, 5), (4, 4), (5, 5)])
    assert found is not None and found.steps == 5
    assert found.bytes_per_step == pytest.approx(0.6)
    assert (found.low, found.high) == (pytest.approx(0.6 - 0.9, rel=1e-4), pytest.approx(0.6 + 0.9, rel=1e-4))


def test_many_steps_use_nearly_the_normal_quantile() -> None:
    rng = random.Random(0)
    points = [(x, round(1000 * x + rng.gauss(0, 5000))) for x in range(62)]
    found = growth_of(points)
    assert found is not None
    mean = sum(y for _, y in points) / 62
    residual = sum((y - mean - found.bytes_per_step * (x - 30.5)) ** 2 for x, y in points)
    spread = sum((x - 30.5) ** 2 for x, _ in points)
    half = 2.0003 * (residual / 60 / spread) ** 0.5  # t(60) of a table
    assert found.high - found.bytes_per_step == pytest.approx(half, rel=2e-3)


def test_three_points_tell_nothing() -> None:
    assert growth_of(held(1, 2, 3)) is None and not still_rises(held(1, 20, 300), ALLOCATED_RISES_BYTES)


@pytest.mark.parametrize(
    "points",
    [
        held(0, 12, 24, 36, 48),
        held(0, 12, 25, 35, 60, 300, steady=20),
        held(0, 0, 9, 9, 9, 18, 18, 18, 27),  # every few steps, as graphs of new lengths do
    ],
)
def test_what_rises_step_by_step_is_a_leak(points: list[tuple[int, int]]) -> None:
    assert still_rises(points, ALLOCATED_RISES_BYTES)


@pytest.mark.parametrize(
    "points",
    [
        held(0, 0, 0, 0, 0),
        held(100, 5100, 5100, 5100, 5100),  # the optimizer's state is born
        held(0, 0, 0, 500, 500, 500, steady=40),  # a cache grows once
        held(0, 0, 0, 0, 0, 900, steady=40),  # something grows once in steady: the line alone would be sure of it
        held(0, 400, 700, 900, 1000, 1050, 1050, 1050),  # levels
        held(0, 10, 0, 10, 0, 10, 0, 10),  # comes back
        held(0, 0.5, 1, 1.5, 2, 2.5),  # half a MiB a step
    ],
)
def test_what_grows_once_levels_or_comes_back_is_healthy(points: list[tuple[int, int]]) -> None:
    assert not still_rises(points, ALLOCATED_RISES_BYTES)


def test_noise_of_resident_memory_does_not_reach_the_threshold() -> None:
    rng = random.Random(1)
    for _ in range(500):
        level, points = 500 * MIB, []
        for step in range(1, 13):
            level += rng.choice([-8, -4, 0, 0, 4, 8, 16]) * MIB  # arenas come and go
            points.append((step, level))
        assert not still_rises(points, RESIDENT_RISES_BYTES)


def test_words_and_steps_left() -> None:
    found = Growth(bytes_per_step=12 * MIB, low=11.75 * MIB, high=12.25 * MIB, steps=6)
    assert growth_words(found) == "memory rises by 12.0 MiB a step (95 %: 11.8 to 12.2)"
    assert steps_left(found, 100 * MIB) == 8 and steps_left(found, -5) == 0
    assert steps_left(found.model_copy(update={"bytes_per_step": -1.0}), 100) is None
