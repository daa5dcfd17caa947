"""When is a strategy in its steady state? Decided from what each step shows; knows no model."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from dataclasses import dataclass

AT_MOST = 20
"""Steps."""
LONG_ENOUGH_SECONDS = 10.0
"""After so long what is quiet goes on, level or not: where a step takes seconds and the processor
makes them uneven, twenty of them cost more than they tell."""
QUIET = 3
"""Steps in which nothing may be compiled, recorded or autotuned, and memory may not keep rising."""
RISES_BYTES = 2**20
"""A step that leaves less than this behind leaks nothing that a training run would die of."""
LEVEL = 0.05
"""How far a settled step may lie from the median of the last ones."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What is seen after a step."""

    seconds: float
    activity: tuple[int, ...]
    """How much was compiled and recorded so far; it stands still once a strategy has settled."""
    held_bytes: int | None = None
    """What is allocated between two steps; None where it cannot be told."""
    work: int = 1
    """Positions of the step's batches, padding included: where lengths vary, times are compared by position."""
    more_to_meet: bool = False
    """There are batches of the steady phase that have not been run yet."""


@dataclass(frozen=True, slots=True)
class Settled:
    """How it ended."""

    seconds: tuple[float, ...]
    """Of each step."""
    level: bool
    active: bool
    """Something was still compiled or recorded in the last steps."""
    rising: bool
    """Memory still rose with each of the last steps, by `RISES_BYTES` at least."""
    grown_bytes: int = 0
    """By how much memory rose over the last steps, where it rose with each of them."""


def until_settled(step: Callable[[int], Observed], before: tuple[int, ...], at_least: int) -> Settled:
    """Step until it is quiet and level and has met all batches, `at_least` times and `AT_MOST` times at most.

    Args:
        step: runs one step, of the number given from 1.
        before: the activity before the first step.
    """
    seen: list[Observed] = []
    while True:
        seen.append(step(len(seen) + 1))
        state = Settled(
            seconds=tuple(s.seconds for s in seen),
            level=_is_level([s.seconds / s.work for s in seen]),
            active=_is_active([before, *(s.activity for s in seen)]),
            rising=_is_rising([s.held_bytes for s in seen]),
            grown_bytes=_grown([s.held_bytes for s in seen]),
        )
        quiet = not state.active and not state.rising and not seen[-1].more_to_meet
        settled = quiet and (state.level or sum(state.seconds) >= LONG_ENOUGH_SECONDS)
        if len(seen) >= AT_MOST or (settled and len(seen) >= at_least):
            return state


def _is_level(seconds: list[float]) -> bool:
    """Are the last three within 5 % of the median of the last five?"""
    median = statistics.median(seconds[-5:])
    return all(abs(s - median) <= LEVEL * median for s in seconds[-QUIET:])


def _is_active(activity: list[tuple[int, ...]]) -> bool:
    return len(activity) <= QUIET or len(set(activity[-QUIET - 1 :])) > 1


def _rises(held: list[int | None]) -> list[int]:
    """By how much memory rose with each of the last steps; empty where it cannot be told."""
    last = [h for h in held[-QUIET:] if h is not None]
    return [b - a for a, b in itertools.pairwise(last)] if len(last) == QUIET else []


def _is_rising(held: list[int | None]) -> bool:
    rises = _rises(held)
    return bool(rises) and min(rises) >= RISES_BYTES


def _grown(held: list[int | None]) -> int:
    rises = _rises(held)
    return sum(rises) if rises and min(rises) > 0 else 0
