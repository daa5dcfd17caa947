"""What NVML says of a card beside a window."""

from __future__ import annotations

import pytest

from tests.tuner.fake_nvml import UUID, FakeNvml, card
from tuner.nvml import Card, ClockState
from tuner.worker.clocks import WindowClocks, between, open_clocks, slowed_by

__all__ = ["card"]
COOL = ClockState(
    sm_mhz=1980,
    temperature_c=35,
    power_w=120.0,
    reasons=(),
    violation_ns={"power_violation": 0, "thermal_violation": 0},
)


def state(reasons: tuple[str, ...] = (), heat_ns: int = 0, power_ns: int = 0) -> ClockState:
    return ClockState(
        sm_mhz=1500,
        temperature_c=80,
        power_w=690.5,
        reasons=reasons,
        violation_ns={"power_violation": power_ns, "thermal_violation": heat_ns},
    )


def test_both_ends_of_a_window(card: FakeNvml) -> None:
    clocks = WindowClocks(UUID)
    clocks.begin()
    card.mhz, card.celsius, card.milliwatts, card.reasons = 1755, 61, 655_250, 0x4
    told = clocks.end()
    assert (told.sm_mhz_before, told.temperature_c_before, told.power_w_before) == (1980, 35, 120.0)
    assert (told.sm_mhz, told.temperature_c, told.power_w) == (1755, 61, 655.25)
    assert told.throttled_by == ("sw_power_cap",) and slowed_by(told) == ()


@pytest.mark.parametrize(("bits", "reasons"), [(0x1, ()), (0x2, ()), (0x100, ()), (0x0, ()), (0x103, ())])
def test_idle_and_clocks_that_were_set_are_no_throttling(card: FakeNvml, bits: int, reasons: tuple[str, ...]) -> None:
    card.reasons = bits
    assert Card(UUID).clocks().reasons == reasons


@pytest.mark.parametrize(
    ("bit", "reason"),
    [
        (0x08, "hw_slowdown"),
        (0x20, "sw_thermal_slowdown"),
        (0x40, "hw_thermal_slowdown"),
        (0x80, "hw_power_brake_slowdown"),
    ],
)
def test_heat_and_a_failing_supply_are_measured_again(card: FakeNvml, bit: int, reason: str) -> None:
    clocks = WindowClocks(UUID)
    clocks.begin()
    card.reasons = 0x1 | 0x4 | bit
    told = clocks.end()
    assert told.throttled_by == ("sw_power_cap", reason)
    assert slowed_by(told) == (reason,)


def test_heat_in_the_middle_of_a_window_is_told_by_the_counter() -> None:
    assert slowed_by(between(COOL, state(heat_ns=2_000_000_000), seconds=20.0)) == ("thermal_violation",)
    assert between(COOL, state(heat_ns=100_000_000), seconds=20.0).throttled_by == (), "half a per cent of the window"
    told = between(COOL, state(power_ns=15_000_000_000), seconds=20.0)
    assert told.throttled_by == ("power_violation",) and slowed_by(told) == ()


def test_a_counter_that_ran_before_is_not_this_window_s() -> None:
    before = state(heat_ns=7_000_000_000)
    assert between(before, state(heat_ns=7_000_000_000), seconds=5.0).throttled_by == ()


def test_a_card_that_tells_little(card: FakeNvml) -> None:
    card.unknown = {"clock", "power", "violations", "event reasons", "throttle reasons"}
    told = Card(UUID).clocks()
    assert told == ClockState(sm_mhz=None, temperature_c=35, power_w=None, reasons=(), violation_ns={})


def test_the_older_name_of_the_reasons(card: FakeNvml) -> None:
    card.unknown, card.reasons = {"event reasons"}, 0x40
    assert Card(UUID).clocks().reasons == ("hw_thermal_slowdown",)


def test_without_a_card_or_without_nvml_nothing_is_known(card: FakeNvml) -> None:
    notes: list[str] = []
    assert open_clocks(None, notes) is None and notes == []
    assert open_clocks("GPU-of-somebody-else", notes) is None
    assert notes == ["clocks: not known (the NVIDIA driver does not answer: Not Found)"]
    assert slowed_by(None) == ()
