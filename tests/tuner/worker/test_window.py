"""How many steps a steady phase has, from made-up windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.tuner.worker.workloads import measurement, shaped
from tuner.kinds import Flag
from tuner.measured import Clocks
from tuner.worker.measurement import Measurement
from tuner.worker.window import WIDEST_SECONDS, Steady, Timed, Window, first_steps, measure_window


class FakeClocks:
    """A card that is throttled in the windows that are listed."""

    def __init__(self, *throttled_by: tuple[str, ...]) -> None:
        self.reasons = list(throttled_by)
        self.begun = 0

    def begin(self) -> None:
        self.begun += 1

    def end(self) -> Clocks:
        return Clocks(sm_mhz=1980, throttled_by=self.reasons.pop(0) if self.reasons else ())


def windows(step: Callable[[int], float], sizes: list[int], work: Callable[[int], int] = lambda _: 128) -> Window:
    """Steps whose seconds are a function of their number in all; `sizes` becomes those of the windows."""

    def window(count: int) -> Timed:
        first = sum(sizes)
        sizes.append(count)
        seconds = tuple(step(first + n) for n in range(count))
        return Timed(seconds, tuple(work(n) for n in range(count)), 100 * count, 1.0)

    return window


def measured(step: Callable[[int], float], steps: int, clocks: Any = None, **window: Any) -> tuple[Steady, list[int]]:
    sizes: list[int] = []
    return measure_window(windows(step, sizes, **window), steps, clocks, made()), sizes


def made() -> Measurement:
    return measurement(shaped())


def uneven(number: int) -> float:
    return 0.1 if number % 2 else 0.11


def test_level_steps_are_timed_once() -> None:
    found, sizes = measured(lambda _: 0.1, 20)
    assert sizes == [20] and found.windows == 1
    told = found.throughput()
    assert (told.median_within, told.windows, told.steps) == (0.0, 1, 20)
    assert told.tokens_per_s == pytest.approx(1000)


def test_windows_are_added_until_the_median_is_known() -> None:
    # 0.1 with one step in four at 0.11: of 9 values the interval still ends at 0.11, of 18 it does not.
    found, sizes = measured(lambda n: 0.11 if n in (0, 4, 8) else 0.1, 9)
    assert sizes == [9, 9]
    told = found.throughput()
    assert (told.steps, told.windows, told.median_within) == (18, 2, 0.0)
    assert told.tokens_per_s == pytest.approx(1800 / (18 * 0.1 + 3 * 0.01)), "all windows count"


def test_what_stays_uneven_is_noisy_and_four_times_as_long() -> None:
    m, sizes = made(), list[int]()
    found = measure_window(windows(uneven, sizes), 20, None, m)
    assert sizes == [20, 20, 20, 20]
    assert found.throughput().median_within == pytest.approx(0.01 / 2 / 0.105)
    assert m.flags == [Flag.NOISY]
    assert m.notes == ["steady: the median of 80 steps is known to 4.8%"]
    assert m.detector_seconds["median"] < 0.1


def test_the_rest_of_the_time_is_not_cut_into_crumbs() -> None:
    # Steps become shorter, so there is always time for one or two more.
    found, sizes = measured(lambda n: (0.1 if n % 2 else 0.11) * 0.995**n, 20)
    assert min(sizes) >= 5 and found.windows == len(sizes) <= 7


def test_long_steps_are_not_repeated_for_long() -> None:
    found, sizes = measured(lambda n: 4.0 if n % 2 else 4.4, 5)
    assert sizes == [5, 2], "20 s and two more steps"
    assert sum(found.timed.seconds) <= WIDEST_SECONDS
    assert measured(lambda _: 50.0, 2)[1] == [2]


def test_too_few_steps_say_nothing_and_are_not_called_noisy() -> None:
    m, sizes = made(), list[int]()
    found = measure_window(windows(lambda _: 50.0, sizes), 2, None, m)
    assert found.throughput().median_within is None and m.flags == [] and m.notes == []


def test_only_whole_windows_where_batches_differ() -> None:
    sizes_of = (100, 300, 200, 400, 500)

    def step(number: int) -> float:
        return sizes_of[number % 5] / 50 * (1.2 if number % 3 else 1.0)

    found, sizes = measured(step, 5, work=lambda n: sizes_of[n])
    assert set(sizes) == {5}
    assert sum(found.timed.seconds) <= WIDEST_SECONDS + 5 * 12


def test_steps_at_first_last_as_long_as_they_have_to() -> None:
    request = made().request.model_copy(update={"steady_steps": 5, "steady_micro_batches": 20, "steady_seconds": 3.0})
    assert first_steps(request, 0.01, 1, noisy=False) == 300
    assert first_steps(request, 4.0, 8, noisy=False) == 5
    assert first_steps(request, 4.0, 1, noisy=False) == 20
    assert first_steps(request, 50.0, 8, noisy=False) == 2
    assert first_steps(request, 0.01, 1, noisy=True) == 600
    assert first_steps(request, 4.0, 1, noisy=True) == 20


def test_a_throttled_window_is_measured_once_more() -> None:
    m, sizes, clocks = made(), list[int](), FakeClocks(("hw_thermal_slowdown",))
    hot_at_first = windows(lambda n: 0.2 if n < 10 else 0.1, sizes)
    found = measure_window(hot_at_first, 10, clocks, m)  # type: ignore[arg-type]
    told = found.throughput()
    assert sizes == [10, 10] and clocks.begun == 2
    assert (told.step_seconds, told.steps, told.windows) == (0.1, 10, 2), "the throttled steps do not count"
    assert told.clocks is not None and told.clocks.throttled_by == ()
    assert m.notes == ["steady: measured once more, as the card was throttled (hw_thermal_slowdown)"]
    assert m.flags == [] and m.detector_seconds["clocks"] >= 0


def test_one_that_stays_throttled_is_kept_and_told() -> None:
    m, sizes = made(), list[int]()
    clocks = FakeClocks(("hw_slowdown",), ("hw_slowdown", "sw_power_cap"))
    found = measure_window(windows(lambda _: 0.1, sizes), 10, clocks, m)  # type: ignore[arg-type]
    assert sizes == [10, 10]
    assert found.clocks is not None and found.clocks.throttled_by == ("hw_slowdown", "sw_power_cap")
    assert m.notes == ["steady: the card was throttled (hw_slowdown), and again when it was measured once more"]


def test_long_steps_are_timed_once_more_for_a_short_time() -> None:
    m, sizes = made(), list[int]()
    clocks = FakeClocks(("hw_thermal_slowdown",))
    found = measure_window(windows(lambda _: 4.0, sizes), 20, clocks, m)  # type: ignore[arg-type]
    assert sizes == [20, 5] and len(found.timed.seconds) == 5, "20 s more, not 80"


def test_a_power_cap_is_told_and_costs_nothing() -> None:
    m, sizes = made(), list[int]()
    clocks = FakeClocks(("sw_power_cap", "power_violation"))
    found = measure_window(windows(lambda _: 0.1, sizes), 10, clocks, m)  # type: ignore[arg-type]
    assert sizes == [10] and m.notes == []
    assert found.clocks is not None and found.clocks.throttled_by == ("sw_power_cap", "power_violation")


def test_nothing_is_asked_of_the_card_inside_a_window() -> None:
    order: list[str] = []

    class Noted(FakeClocks):
        def begin(self) -> None:
            order.append("begin")

        def end(self) -> Clocks:
            order.append("end")
            return Clocks()

    def window(count: int) -> Timed:
        order.append("window")
        return Timed((0.1, 0.11) * (count // 2), (1,) * count, count, 1.0)

    measure_window(window, 10, Noted(), made())  # type: ignore[arg-type]
    assert (order[0], order[-1]) == ("begin", "end") and set(order[1:-1]) == {"window"}
