"""When a strategy has settled, from made-up steps."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tuner.worker.growth import ALLOCATED_RISES_BYTES
from tuner.worker.settle import AT_MOST, LONG_ENOUGH_SECONDS, Observed, Settled, until_settled

RISES_BYTES = 2 * ALLOCATED_RISES_BYTES


def settle(
    seconds: Sequence[float],
    activity: Sequence[int] = (),
    held: Sequence[int | None] = (),
    at_least: int = 3,
    before: int = 0,
) -> Settled:
    """The last one of each list goes on for ever."""

    def at(values: Sequence[int | float | None], number: int) -> float | int | None:
        return values[min(number, len(values)) - 1]

    def step(number: int) -> Observed:
        held_bytes = at(held, number) if held else None
        return Observed(
            seconds=float(at(seconds, number) or 0),
            activity=(int((at(activity, number) if activity else before) or 0),),
            held_bytes=None if held_bytes is None else int(held_bytes),
        )

    return until_settled(step, (before,), at_least)


def test_three_level_steps_are_enough() -> None:
    settled = settle([1.0])
    assert settled == Settled(seconds=(1.0,) * 3, level=True, active=False, rising=False)


def test_graphs_need_four() -> None:
    assert len(settle([1.0], at_least=4).seconds) == 4


def test_slow_first_steps_are_waited_for() -> None:
    settled = settle([9e-1, 5e-1, 1e-1])
    assert settled.level and settled.seconds[-3:] == (0.1, 0.1, 0.1)


def test_within_five_per_cent_is_level() -> None:
    assert len(settle([1.0, 1.04, 0.97, 1.0]).seconds) == 3
    assert len(settle([1.0, 1.07, 0.97, 1.0]).seconds) > 3


@pytest.mark.parametrize(("last", "steps", "active"), [(2, 5, False), (9, 12, False), (14, 20, False), (15, 20, True)])
def test_what_is_compiled_twice_in_the_last_third_comes_again(last: int, steps: int, active: bool) -> None:
    settled = settle([1.0], activity=[*range(1, last + 1)])
    assert (len(settled.seconds), settled.active) == (steps, active)


@pytest.mark.parametrize(
    ("late", "steps", "active"), [(14, 17, False), (16, 19, False), (17, 20, False), (18, 20, True)]
)
def test_one_late_compile_is_healthy_once_it_is_quiet(late: int, steps: int, active: bool) -> None:
    uneven = [0.1, 0.2] * (late // 2) + [0.1]  # what keeps it from settling before
    settled = settle(uneven, activity=[0] * (late - 1) + [3])
    assert (len(settled.seconds), settled.active) == (steps, active)


def test_two_late_compiles_are_not() -> None:
    settled = settle([0.1, 0.2] * 7 + [0.1], activity=[0] * 13 + [1, 1, 2])
    assert (len(settled.seconds), settled.active) == (20, True)


def test_a_compile_starts_the_wait_anew() -> None:
    settled = settle([1.0], activity=[1, 1, 2, 2], before=1)
    assert len(settled.seconds) == 6 and not settled.active  # quiet in steps 4, 5 and 6


def test_a_compile_in_the_first_step_counts() -> None:
    assert len(settle([1.0], activity=[1], before=0).seconds) == 4


def test_times_that_never_level() -> None:
    settled = settle([0.1, 0.2] * AT_MOST)
    assert len(settled.seconds) == AT_MOST
    assert (settled.level, settled.active, settled.rising) == (False, False, False)


def test_long_uneven_steps_are_not_repeated_for_nothing() -> None:
    settled = settle([LONG_ENOUGH_SECONDS / 4, LONG_ENOUGH_SECONDS / 2] * AT_MOST)
    assert len(settled.seconds) == 3 and not settled.level


def test_it_compiles_for_ever() -> None:
    settled = settle([1.0], activity=range(1, 100))
    assert len(settled.seconds) == AT_MOST and settled.active
    assert len(settle([100.0], activity=range(1, 100)).seconds) == AT_MOST  # time is no excuse


def test_memory_that_rises_for_ever() -> None:
    settled = settle([1.0], held=range(0, 100 * RISES_BYTES, RISES_BYTES))
    assert len(settled.seconds) == AT_MOST and settled.rising and not settled.active


@pytest.mark.parametrize("held", [[5], [1, 2, 3, 3], [9, 8, 9, 8, 9], [None]])
def test_memory_that_stands_still_or_comes_back(held: list[int | None]) -> None:
    assert not settle([1.0], held=held).rising


def test_memory_may_rise_at_first() -> None:
    # The optimizer's state is born in the first step, and what is cached in the next ones.
    settled = settle([1.0], held=[n * RISES_BYTES for n in (1, 2, 3, 4, 5, 5)])
    assert not settled.rising and len(settled.seconds) < AT_MOST


def test_what_a_compile_leaves_behind_is_no_leak() -> None:
    held = [n * 100 * RISES_BYTES for n in range(1, 6)]
    settled = settle([1.0], activity=[1, 2, 3, 4, 5], held=held)
    assert not settled.rising and settled.held[0] == (5, 500 * RISES_BYTES)
    assert len(settled.seconds) == 8


def test_a_few_bytes_are_no_leak() -> None:
    settled = settle([1.0], held=range(0, 512 * 100, 512))
    assert len(settled.seconds) == 3 and not settled.rising
    assert settled.held == ((1, 0), (2, 512), (3, 1024))


def test_batches_that_are_still_to_be_met_are_waited_for() -> None:
    settled = until_settled(lambda n: Observed(1.0, (0,), more_to_meet=n < 12), (0,), 3)
    assert len(settled.seconds) == 12


def test_times_of_batches_of_different_size_are_compared_by_position() -> None:
    sizes = [1, 3, 2, 5, 4]
    settled = until_settled(lambda n: Observed(float(sizes[n % 5]), (0,), work=sizes[n % 5]), (0,), 3)
    assert settled.level and len(settled.seconds) == 3
