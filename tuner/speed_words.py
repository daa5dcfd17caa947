"""What a report says of compile seconds, and of the steps that pay for them."""

from __future__ import annotations

from tuner.break_even import BreakEven, CompileTimes
from tuner.measured import Clocks, CompileParts
from tuner.record import TrialRecord
from tuner.units import format_duration

_PARTS = {
    "dynamo": "dynamo",
    "aot_autograd": "AOT autograd",
    "inductor": "inductor",
    "triton": "Triton",
    "autotuning": "autotuning",
    "graph_capture": "graph capture",
}
_SHOWN_FROM = 0.05
"""Seconds; a part that took less is left out."""


def compile_words(times: CompileTimes, device_type: str) -> str:
    """Compile seconds cold and warm, the first with its parts; empty where nothing is compiled.

    ``compile 13.2 s cold (dynamo 2.1, inductor 6.0), 4.1 s warm``: the parts are of the launch before them.
    """
    told = [(times.cold, " cold"), (times.unsaid if times.cold is None else None, ""), (times.warm, " warm")]
    found = [(record, state) for record, state in told if record is not None]
    if not found:
        return ""
    words = [_seconds(record) + state for record, state in found]
    words[0] += _parts(found[0][0], device_type)
    return "compile " + ", ".join(words)


def pays_words(when: BreakEven | None) -> str:
    """``paid for after 120 steps against baseline``, or that it never pays, or that nothing is known (None)."""
    if when is None:
        return "when it pays is not known: no reference ran at full depth"
    if when.steps is None:
        return f"never pays against {when.against}: it is no faster"
    return f"paid for after {when.steps:,} steps against {when.against}"


def clock_words(clocks: Clocks) -> str:
    """What held the card's clock down while it was timed; empty where nothing did."""
    if not clocks.throttled_by:
        return ""
    figures = [(clocks.sm_mhz, "MHz"), (clocks.temperature_c, "°C"), (clocks.power_w, "W")]
    told = ", ".join(f"{value:,.0f} {unit}" for value, unit in figures if value is not None)
    return f"clock held down by {', '.join(clocks.throttled_by)}" + (f" ({told})" if told else "")


def _seconds(record: TrialRecord) -> str:
    return format_duration(record.compile_seconds or 0.0)


def _parts(record: TrialRecord, device_type: str) -> str:
    parts = record.result.compile.parts if record.result else None
    if parts is None:
        return ""
    names = _PARTS if device_type == "cuda" else _PARTS | {"triton": "C++ compiler"}
    shown = [f"{name} {_figure(parts, field)}" for field, name in names.items() if getattr(parts, field) >= _SHOWN_FROM]
    return f" ({', '.join(shown)})" if shown else ""


def _figure(parts: CompileParts, field: str) -> str:
    return f"{getattr(parts, field):.1f}"
