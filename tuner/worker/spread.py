"""How well a window tells the median of its steps."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

KNOWN = 0.01
"""A median is known where half of its 95 % interval is no more than this part of it."""
_ONE_TAIL = 40
"""One in so many (2.5 %): what may lie beyond each end of a 95 % interval."""


def median_within(seconds: Sequence[float], work: Sequence[int] = ()) -> float | None:
    """Return half the 95 % confidence interval of the median step, over the median; None: fewer than six steps.

    From order statistics, so it supposes no distribution: of n sorted values the median lies outside
    x(k) to x(n+1-k) with probability 2 * P(B <= k-1), where B counts the heads of n fair coins
    (David and Nagaraja, Order Statistics, section 7.1). The largest k is taken that leaves at most
    5 %; with fewer than six values not even the smallest and the largest do. It supposes that steps
    do not hang on one another.

    Args:
        seconds: of each step.
        work: positions of each step's batches. Where they differ, so do the times for a good reason,
            and no further step would change that: what a straight line through both tells is taken out.
    """
    rank = _rank(len(seconds))
    if rank is None:
        return None
    alike = sorted(_for_the_same_work(seconds, work))
    median = statistics.median(alike)
    return (alike[-rank] - alike[rank - 1]) / 2 / median if median > 0 else None


def _rank(count: int) -> int | None:
    """Return the largest k with P(B <= k-1) <= 2.5 %, in whole numbers: 2**12000 is no float."""
    below, term, rank = 0, 1, 0
    while (below + term) * _ONE_TAIL <= 2**count:
        below += term
        term = term * (count - rank) // (rank + 1)
        rank += 1
    return rank or None


def _for_the_same_work(seconds: Sequence[float], work: Sequence[int]) -> list[float]:
    if len(set(work)) < 2:
        return list(seconds)
    line = statistics.linear_regression(work, seconds)
    typical = statistics.median(seconds)
    return [s - (line.intercept + line.slope * w) + typical for s, w in zip(seconds, work, strict=True)]
