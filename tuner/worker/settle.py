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


@dataclass(frozen=True, slots=True)
class Settled:
    """How it ended."""

    seconds: tuple[float, ...]
    """Of each step."""
    level: bool
    active: bool
    """Something was still compiled or recorded in the last steps."""
    rising: bool
    """Memory still rose with each of the last steps."""


def until_settled(step: Callable[[int], Observed], before: tuple[int, ...], at_least: int) -> Settled:
    """Step until it is quiet and level, `at_least` times and `AT_MOST` times at most.

    Args:
        step: runs one step, of the number given from 1.
        before: the activity before the first step.
    """
    seen: list[Observed] = []
    while True:
        seen.append(step(len(seen) + 1))
        state = Settled(
            seconds=tuple(s.seconds for s in seen),
            level=_is_level([s.seconds for s in seen]),
            active=_is_active([before, *(s.activity for s in seen)]),
            rising=_is_rising([s.held_bytes for s in seen]),
        )
        quiet = not state.active and not state.rising
        settled = quiet and (state.level or sum(state.seconds) >= LONG_ENOUGH_SECONDS)
        if len(seen) >= AT_MOST or (settled and len(seen) >= at_least):
            return state


def _is_level(seconds: list[float]) -> bool:
    """Are the last three within 5 % of the median of the last five?"""
    median = statistics.median(seconds[-5:])
    return all(abs(s - median) <= LEVEL * median for s in seconds[-QUIET:])


def _is_active(activity: list[tuple[int, ...]]) -> bool:
    return len(activity) <= QUIET or len(set(activity[-QUIET - 1 :])) > 1


def _is_rising(held: list[int | None]) -> bool:
    last = [h for h in held[-QUIET:] if h is not None]
    return len(last) == QUIET and all(a < b for a, b in itertools.pairwise(last))
