"""Does memory rise from step to step? A straight line through what is held, and how sure its slope is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from tuner.measured import Growth
from tuner.units import MIB

ALLOCATED_RISES_BYTES = MIB
"""A step of a card that leaves less than this behind leaks nothing that a training run would die of."""
RESIDENT_RISES_BYTES = 16 * MIB
"""The same of resident memory: malloc keeps and gives back whole arenas, some MiB at a time."""
FEWEST = 4
"""Points; through fewer of them any line goes."""
SEVERAL = 3
"""Rises; what grows once or twice (a cache, a state that is born late) is no leak."""

# Student's t, two-sided 95 %, for 1, 2, … degrees of freedom (any table of it); 1.96 in the limit.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_T_NORMAL = 1.96

Held = tuple[int, int]
"""The number of an optimizer step, and the bytes that are held after it."""


def growth_of(points: Sequence[Held]) -> Growth | None:
    """Return the least-squares slope of `points` with its 95 % confidence interval; None: too few of them.

    Half the interval is t * s / sqrt(sum (x - mean)**2), with s**2 = sum residual**2 / (n - 2) and Student's t for
    n - 2 degrees of freedom.
    """
    count = len(points)
    if count < FEWEST:
        return None
    mean_x, mean_y = (sum(p[axis] for p in points) / count for axis in (0, 1))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    residual = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in points)
    half = _student_t(count - 2) * math.sqrt(residual / (count - 2) / spread)
    return Growth(bytes_per_step=slope, low=slope - half, high=slope + half, steps=count)


def _student_t(freedom: int) -> float:
    if freedom <= len(_T):
        return _T[freedom - 1]
    # Cornish-Fisher's first term: right to 0.3 % from eleven degrees on.
    return _T_NORMAL + (_T_NORMAL**3 + _T_NORMAL) / (4 * freedom)


def still_rises(points: Sequence[Held], threshold_bytes: int) -> bool:
    """Does memory rise for sure by more than `threshold_bytes` a step, in several steps and to the end?

    A single rise cannot pass, however large: a line with one far point (the end of `steady`) has a
    narrow interval whatever happened between.
    """
    growth = growth_of(points)
    if growth is None or growth.low <= threshold_bytes:
        return False
    rose = [after - before > threshold_bytes for (_, before), (_, after) in itertools.pairwise(points)]
    return sum(rose) >= SEVERAL and any(rose[-2:])


def growth_words(growth: Growth) -> str:
    """``memory rises by 12.0 MiB a step (95 %: 11.8 to 12.2)``."""
    slope, low, high = (value / MIB for value in (growth.bytes_per_step, growth.low, growth.high))
    return f"memory rises by {slope:,.1f} MiB a step (95 %: {low:,.1f} to {high:,.1f})"


def steps_left(growth: Growth, room_bytes: int) -> int | None:
    """Return after how many more steps `room_bytes` are used up; None: it does not grow."""
    if growth.bytes_per_step <= 0:
        return None
    return max(0, math.floor(room_bytes / growth.bytes_per_step))
