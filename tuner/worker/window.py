"""The timed window: as many steps as it takes to know their median, and none that a hot card held back."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tuner.kinds import Flag
from tuner.measured import Clocks, Throughput
from tuner.protocol import TrialRequest
from tuner.worker.clocks import WindowClocks, slowed_by
from tuner.worker.measurement import Measurement
from tuner.worker.spread import KNOWN, median_within

NOISY_FACTOR = 2
"""How much longer the first window lasts where step times never levelled."""
NOISY_SECONDS = 15.0
"""A first window of this length is not made longer for it."""
LONGEST_SECONDS = 120.0
"""A first window that would last longer has fewer steps, `FEWEST_STEPS` at least."""
FEWEST_STEPS = 2
WIDEST_SECONDS = 30.0
"""All windows together; a trial of long steps must not take the time of another trial."""
AGAIN_SECONDS = 20.0
"""All windows together, where they are timed once more."""
WIDEST_TIMES = 4
"""All windows together, against the first: four times the steps halve the interval."""


@dataclass(frozen=True, slots=True)
class Timed:
    """Steps that were timed, of one window or of several after one another."""

    seconds: tuple[float, ...]
    """Of each step."""
    work: tuple[int, ...]
    """Positions of each step's batches, padding included."""
    tokens: int
    loss: float
    """Of the last step."""

    @property
    def within(self) -> float | None:
        """How well the median is known (`median_within`)."""
        return median_within(self.seconds, self.work)

    def then(self, later: Timed) -> Timed:
        """Return these steps with those of a later window behind them."""
        return Timed(self.seconds + later.seconds, self.work + later.work, self.tokens + later.tokens, later.loss)


Window = Callable[[int], Timed]
"""Times so many steps, the first of the workload's batches first; synchronised once, at its end."""


@dataclass(frozen=True, slots=True)
class Steady:
    """The steady phase as it was measured."""

    timed: Timed
    windows: int
    """All that were timed, those that do not count included."""
    clocks: Clocks | None

    def throughput(self) -> Throughput:
        """Return what is kept of it."""
        seconds = self.timed.seconds
        return Throughput(
            tokens_per_s=self.timed.tokens / sum(seconds),
            step_seconds=statistics.median(seconds),
            step_seconds_p10=_quantile(seconds, 0.1),
            step_seconds_p90=_quantile(seconds, 0.9),
            steps=len(seconds),
            tokens_per_step=self.timed.tokens / len(seconds),
            median_within=self.timed.within,
            windows=self.windows,
            clocks=self.clocks,
        )


def first_steps(request: TrialRequest, typical: float, accumulation: int, noisy: bool) -> int:
    """Return how many steps make the first window as long as it has to be, and no longer than it may.

    Args:
        typical: seconds of a step, from `settle`.
        noisy: the times never levelled in `settle`.
    """
    typical = max(typical, 1e-4)
    steps = max(
        request.steady_steps,
        math.ceil(request.steady_micro_batches / accumulation),
        math.ceil(request.steady_seconds / typical),
    )
    if noisy:
        # More steps tell more, but only so far as they are cheap.
        steps = max(steps, min(steps * NOISY_FACTOR, math.ceil(NOISY_SECONDS / typical)))
    return min(steps, max(FEWEST_STEPS, int(LONGEST_SECONDS / typical)))


def measure_window(window: Window, steps: int, clocks: WindowClocks | None, m: Measurement) -> Steady:
    """Time windows of `steps` steps until the median is known, anew where the card was slowed down meanwhile.

    Twice at most: a card that is still too hot says what it will do in training too. A flag and
    the notes that a person has to see go to `m`.
    """
    found = _once(window, steps, clocks, m, WIDEST_SECONDS)
    if reasons := slowed_by(found.clocks):
        typical = statistics.median(found.timed.seconds)
        fewer = min(steps, max(FEWEST_STEPS, int(AGAIN_SECONDS / typical)))
        again = _once(window, fewer, clocks, m, AGAIN_SECONDS)
        found = Steady(again.timed, found.windows + again.windows, again.clocks)
        m.notes.append(_about_clocks(reasons, slowed_by(again.clocks)))
    within = found.timed.within
    if within is not None and within > KNOWN:
        m.flags += [] if Flag.NOISY in m.flags else [Flag.NOISY]
        m.notes.append(f"steady: the median of {len(found.timed.seconds)} steps is known to {within:.1%}")
    return found


def _once(window: Window, steps: int, clocks: WindowClocks | None, m: Measurement, seconds_at_most: float) -> Steady:
    if clocks is not None:
        with m.detecting("clocks"):
            clocks.begin()
    timed, windows = widen(window, steps, m, seconds_at_most)
    told = None
    if clocks is not None:
        with m.detecting("clocks"):
            told = clocks.end()
    return Steady(timed, windows, told)


def _about_clocks(reasons: Sequence[str], still: Sequence[str]) -> str:
    if still:
        return f"steady: the card was throttled ({', '.join(still)}), and again when it was measured once more"
    return f"steady: measured once more, as the card was throttled ({', '.join(reasons)})"


def widen(window: Window, steps: int, m: Measurement, seconds_at_most: float) -> tuple[Timed, int]:
    """Time windows of `steps` steps until the median is known within `KNOWN`, or no more time may go into it.

    The interval is looked at between two windows, never inside one. Returns all steps, and the
    number of windows.

    Args:
        seconds_at_most: of all windows together; a first one that takes as long is the only one.
    """
    timed, windows = window(steps), 1
    seconds_at_most = min(seconds_at_most, WIDEST_TIMES * sum(timed.seconds))
    while not _is_known(timed, m) and (more := _more(timed, steps, seconds_at_most)) > 0:
        timed, windows = timed.then(window(more)), windows + 1
    return timed, windows


def _is_known(timed: Timed, m: Measurement) -> bool:
    with m.detecting("median"):
        within = timed.within
    return within is not None and within <= KNOWN


def _more(timed: Timed, steps: int, seconds_at_most: float) -> int:
    """Return the steps of another window; 0: there is no time for one."""
    spent = sum(timed.seconds)
    more = min(steps, int((seconds_at_most - spent) / (spent / len(timed.seconds))))
    # The first step of a window finds nothing queued before it, so a few steps tell less than they seem to. And
    # where batches differ, a part of a window is another mixture than the whole, and trains other tokens a second.
    least = steps if len(set(timed.work)) > 1 else max(1, steps // 4)
    return more if more >= least else 0


def _quantile(values: Sequence[float], fraction: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(fraction * (len(ordered) - 1)))]
