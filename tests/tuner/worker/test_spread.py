"""The interval of a median, against values that can be looked up and against chance itself."""

from __future__ import annotations

import random

import pytest

from tuner.worker.spread import _rank, median_within


@pytest.mark.parametrize(
    ("count", "rank"),
    # Table A17 of Conover, Practical Nonparametric Statistics: the sign test at 5 %, two-sided.
    [(5, None), (6, 1), (8, 1), (9, 2), (10, 2), (12, 3), (15, 4), (20, 6), (25, 8), (100, 40)],
)
def test_the_ranks_are_those_of_the_sign_test(count: int, rank: int | None) -> None:
    assert _rank(count) == rank


def test_half_the_interval_over_the_median() -> None:
    # Of ten values the second smallest and the second largest: 102 and 109, median 105.5.
    assert median_within([float(v) for v in range(110, 100, -1)]) == pytest.approx((109 - 102) / 2 / 105.5)


def test_fewer_than_six_steps_tell_nothing() -> None:
    assert median_within([1.0] * 5) is None
    assert median_within([1.0] * 6) == 0.0


def test_outliers_do_not_widen_it() -> None:
    assert median_within([1.0] * 18 + [9.0, 90.0]) == 0.0


def test_it_holds_nineteen_times_of_twenty() -> None:
    draw = random.Random(0)
    held = 0
    for _ in range(2000):
        steps = sorted(draw.expovariate(1.0) for _ in range(15))
        held += steps[3] <= 0.6931 <= steps[-4]
    assert 0.95 <= held / 2000 <= 0.98, "15 values: 96.5 % by the formula"


def test_batches_of_different_size_are_compared_at_the_same_size() -> None:
    work = [100, 220, 350, 410, 160, 290, 500, 130]
    alike = [0.2 + w / 1000 for w in work]
    assert median_within(alike, work) == pytest.approx(0.0, abs=1e-9)
    assert (median_within(alike) or 0) > 0.3, "without their sizes they look uneven"
    uneven = [s * (1.1 if n % 2 else 0.9) for n, s in enumerate(alike)]
    assert (median_within(uneven, work) or 0) > 0.05, "and what is uneven stays so"


def test_many_steps_are_no_matter() -> None:
    assert _rank(12_000) == 5893
