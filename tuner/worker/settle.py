"""When is a strategy in its steady state? Decided from what each step shows; knows no model."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from tuner.worker.growth import ALLOCATED_RISES_BYTES, Held, still_rises

AT_MOST = 20
"""Steps."""
LONG_ENOUGH_SECONDS = 10.0
"""After so long what is quiet goes on, level or not: where a step takes seconds and the processor
makes them uneven, twenty of them cost more than they tell."""
QUIET = 3
"""Steps in which nothing may be compiled, recorded or autotuned, and memory may not keep rising."""
LAST = 3
"""Of all steps the last one in so many may compile or record in one step at most: what comes twice that late comes
again. One step is one cause, however many layers it makes compile."""
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
    """Something was still compiled or recorded in the last steps, or in two steps of the last third of all."""
    rising: bool
    """Memory still rose, for sure and in several steps (`growth.still_rises`)."""
    held: tuple[Held, ...] = ()
    """What was held after each step since the last that compiled or recorded anything."""


def until_settled(
    step: Callable[[int], Observed], before: tuple[int, ...], at_least: int, rises_bytes: int = ALLOCATED_RISES_BYTES
) -> Settled:
    """Step until it is quiet and level and has met all batches, `at_least` times and `AT_MOST` times at most.

    Args:
        step: runs one step, of the number given from 1.
        before: the activity before the first step.
        rises_bytes: what may be left behind by each step.
    """
    seen: list[Observed] = []
    while True:
        seen.append(step(len(seen) + 1))
        held = _held_when_quiet(seen)
        state = Settled(
            seconds=tuple(s.seconds for s in seen),
            level=_is_level([s.seconds / s.work for s in seen]),
            active=_is_active([before, *(s.activity for s in seen)]),
            rising=still_rises(held, rises_bytes),
            held=held,
        )
        # A last rise is looked into even where there are too few steps for a line through them.
        level_memory = len(held) < 2 or held[-1][1] - held[-2][1] <= rises_bytes
        quiet = not state.active and not state.rising and level_memory and not seen[-1].more_to_meet
        settled = quiet and (state.level or sum(state.seconds) >= LONG_ENOUGH_SECONDS)
        if len(seen) >= AT_MOST or (settled and len(seen) >= at_least):
            return state


def _is_level(seconds: list[float]) -> bool:
    """Are the last three within 5 % of the median of the last five?"""
    median = statistics.median(seconds[-5:])
    return all(abs(s - median) <= LEVEL * median for s in seconds[-QUIET:])


def _is_active(activity: list[tuple[int, ...]]) -> bool:
    """Was anything compiled or recorded in the last three steps, or in two steps of the last third of all?"""
    active = [now != then for then, now in itertools.pairwise(activity)]
    late = active[-math.ceil(len(active) / LAST) :]
    return len(active) < QUIET or any(active[-QUIET:]) or sum(late) > 1


def _held_when_quiet(seen: list[Observed]) -> tuple[Held, ...]:
    """What is held after the last steps that compiled and recorded nothing more; what comes before is no leak."""
    last = seen[-1].activity
    quiet = itertools.takewhile(lambda pair: pair[1].activity == last, reversed(list(enumerate(seen, 1))))
    return tuple((number, s.held_bytes) for number, s in reversed(list(quiet)) if s.held_bytes is not None)
