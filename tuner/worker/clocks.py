"""The card's clocks at both ends of a timed window, and what held them down meanwhile."""

from __future__ import annotations

import time

from tuner.errors import MachineError
from tuner.measured import Clocks
from tuner.nvml import Card, ClockState

SLOWED_BY = frozenset(
    {"hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown", "thermal_violation"}
)
"""Reasons for which a window is measured again: heat, or a power supply that gives way, and both pass.

`sw_power_cap` and `power_violation` are told, and are none: many a card at full load runs at its power
limit all the time, will do so in training too, and what was measured is its true speed. So are
`sync_boost`, `board_limit` and `reliability`, which are how the machine is set up.
"""
VIOLATION = 0.01
"""The part of a window for which a violation counter has to run before it is told."""


class WindowClocks:
    """Reads the clocks of one card. Made before the window: it starts NVML.

    Raises:
        MachineError: NVML cannot be asked about the card.
    """

    def __init__(self, uuid: str) -> None:
        self._card = Card(uuid)
        self._before: tuple[ClockState, float] | None = None

    def begin(self) -> None:
        """Read them before the first step is submitted."""
        self._before = self._card.clocks(), time.perf_counter()

    def end(self) -> Clocks:
        """Read them after the device has done the last step; return what there is to say of the time between."""
        assert self._before is not None, "begin comes before end"
        before, since = self._before
        return between(before, self._card.clocks(), time.perf_counter() - since)


def open_clocks(uuid: str | None, notes: list[str]) -> WindowClocks | None:
    """Return the clocks of the card with that UUID; None: there is no card, or NVML does not tell, with a note."""
    if uuid is None:
        return None
    try:
        return WindowClocks(uuid)
    except MachineError as error:
        notes.append(f"clocks: not known ({error})")
        return None


def between(before: ClockState, after: ClockState, seconds: float) -> Clocks:
    """Return what two readings, `seconds` apart, say of the time between them."""
    ran = {
        name: after.violation_ns[name] - ns for name, ns in before.violation_ns.items() if name in after.violation_ns
    }
    counted = [name for name, ns in ran.items() if ns / 1e9 >= VIOLATION * seconds]
    return Clocks(
        sm_mhz=after.sm_mhz,
        temperature_c=after.temperature_c,
        power_w=after.power_w,
        sm_mhz_before=before.sm_mhz,
        temperature_c_before=before.temperature_c,
        power_w_before=before.power_w,
        throttled_by=tuple(dict.fromkeys([*before.reasons, *after.reasons, *counted])),
    )


def slowed_by(clocks: Clocks | None) -> tuple[str, ...]:
    """Return the reasons for which the window has to be measured again; none where clocks are not known."""
    return () if clocks is None else tuple(reason for reason in clocks.throttled_by if reason in SLOWED_BY)
