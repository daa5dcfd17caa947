"""How long a trial will take, from what the trials so far took."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping

from strategies.knob import COMPILE_OFF, GRAPH_MODES, Strategy
from tuner.outcome import Outcome
from tuner.record import TrialRecord

UNKNOWN_SECONDS = {"eager": 60.0, "compiled": 90.0, "graphs": 90.0}
"""Before any trial of the kind has ended, by `mode_class`."""
WHOLE_MODEL = 2.5
"""A whole-model compile against one of a layer, before any has been seen."""
SLOW = 8.0
"""The max-autotune modes, likewise."""


def mode_class(strategy: Mapping[str, object]) -> str:
    """Return ``eager``, ``compiled`` or ``graphs``: what decides how much memory lies outside the allocator."""
    mode = strategy["mode"]
    if mode == COMPILE_OFF:
        return "eager"
    return "graphs" if mode in GRAPH_MODES else "compiled"


class Timing:
    """Estimates from records of one key; `seen` adds one."""

    def __init__(self, records: Iterable[TrialRecord] = ()) -> None:
        self._seconds: dict[tuple[str, str], list[float]] = {}
        for record in records:
            self.seen(record)

    def seen(self, record: TrialRecord) -> None:
        """Learn from a launch that came to its own end."""
        launched = record.role != "twin" and not record.twin_uuid
        if launched and record.outcome not in {Outcome.INTERRUPTED, Outcome.DEVICE_NOT_CLEAN}:
            self._seconds.setdefault(group(record.strategy), []).append(record.seconds)

    def knows(self, strategy: Strategy) -> bool:
        """Has a trial of this kind (`mode_class`) been seen?"""
        return any(kind == mode_class(strategy) for kind, _ in self._seconds)

    def expected(self, strategy: Strategy) -> float:
        """Return the seconds that a trial of `strategy` will likely take, rather too many than too few."""
        found = group(strategy)
        if found in self._seconds:
            return statistics.median(self._seconds[found][-7:]) * 1.1
        kind, scope = found
        alike = [s for (k, _), seconds in self._seconds.items() if k == kind for s in seconds]
        base = statistics.median(alike) if alike else UNKNOWN_SECONDS[kind]
        factor = WHOLE_MODEL if scope == "whole" and kind != "eager" else 1.0
        return base * factor * (SLOW if "max-autotune" in str(strategy["mode"]) else 1.0)


def group(strategy: Mapping[str, object]) -> tuple[str, str]:
    """Return what the estimate depends on: strategies of one group are expected to take as long."""
    kind = mode_class(strategy)
    slow = "slow " if "max-autotune" in str(strategy["mode"]) else ""
    return kind, slow + ("" if kind == "eager" else str(strategy["scope"]))
