"""One limit for a budget: what peak device may reach, and what the allocator may reserve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tuner.errors import NothingFits, WrongInput
from tuner.units import GIB, format_gib, gib_to_bytes

DeviceType = Literal["cuda", "cpu"]

OVER_CARD = 1.125
"""A budget up to this much of the card is clamped to it; above it is wrong input."""
EMULATED_BELOW = 0.95
"""Of the card's total: a budget below it stands for a smaller card."""
SMALLER_CARD_GIVES = 0.98
"""Of its nominal size (24 GB cards show 23.5 to 23.65 GiB)."""
MARGIN = 0.03
LEAST_MARGIN_BYTES = GIB // 2
"""On a card; on a CPU the margin is `MARGIN` alone."""
ASSUMED_OUTSIDE_BYTES = gib_to_bytes(1.1)
"""Context, modules and graphs, outside the allocator, until they have been measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a budget means on a device."""

    budget_bytes: int
    """As asked for, or what the device has where that is less (`clamped`)."""
    t_bytes: int
    """T: what the card gives a process, or what the emulated card would."""
    margin_bytes: int
    limit_bytes: int
    """What peak device may reach."""
    emulated: bool
    """Another card than the real one is emulated by the cap."""
    clamped: bool
    """The budget was more than the device has: say so in one line."""


def limits(
    budget_bytes: int,
    t_bytes: int,
    device_type: DeviceType,
    *,
    total_bytes: int | None = None,
    gives_bytes: int | None = None,
) -> Limits:
    """Return the limit for a budget.

    Args:
        t_bytes: on a card the total that CUDA reports less what others hold; on a CPU what is available.
        total_bytes: of the card, as CUDA reports it; `t_bytes` unless said.
        gives_bytes: what the card that is emulated gives a process; None: no card was named, and a
            budget well below the real card stands for one that gives `SMALLER_CARD_GIVES` of it.

    Raises:
        WrongInput: the budget is nothing, or more than 12.5 % above the card.
        NothingFits: the margin alone takes the budget.
    """
    if budget_bytes <= 0:
        raise WrongInput("budget_gb", "must be more than nothing", budget_bytes / GIB)
    if device_type == "cpu":
        return _on_cpu(budget_bytes, t_bytes)
    total = t_bytes if total_bytes is None else total_bytes
    if budget_bytes > OVER_CARD * total:
        rule = f"must be at most 12.5 % above the {format_gib(total)} of the card"
        raise WrongInput("budget_gb", rule, round(budget_bytes / GIB, 2))
    return _on_card(budget_bytes, t_bytes, total, gives_bytes)


def cap(limit_bytes: int, outside_bytes: int | None, device_type: DeviceType) -> int | None:
    """Return what the allocator may reserve; None on a CPU, which has no such cap.

    `outside_bytes`: peak device less peak reserved of an `ok` of this mode; None: not measured yet.
    """
    if device_type == "cpu":
        return None
    return max(0, limit_bytes - (ASSUMED_OUTSIDE_BYTES if outside_bytes is None else outside_bytes))


def _on_cpu(budget_bytes: int, t_bytes: int) -> Limits:
    budget = min(budget_bytes, t_bytes)
    margin = int(MARGIN * budget)
    return Limits(
        budget_bytes=budget,
        t_bytes=t_bytes,
        margin_bytes=margin,
        limit_bytes=budget - margin,
        emulated=False,
        clamped=budget_bytes > t_bytes,
    )


def _on_card(budget_bytes: int, t_bytes: int, total_bytes: int, gives_bytes: int | None) -> Limits:
    if gives_bytes is None and budget_bytes < EMULATED_BELOW * total_bytes:
        gives_bytes = int(SMALLER_CARD_GIVES * budget_bytes)
    emulated = gives_bytes is not None
    # What others hold counts against an emulated card only where the real one has too little left.
    t = t_bytes if gives_bytes is None else min(t_bytes, gives_bytes)
    given = min(budget_bytes, t)
    margin = max(LEAST_MARGIN_BYTES, int(MARGIN * given))
    if margin >= given:
        raise NothingFits(f"of {format_gib(given)} the margin of {format_gib(margin)} leaves nothing")
    return Limits(
        budget_bytes=min(budget_bytes, total_bytes),
        t_bytes=t,
        margin_bytes=margin,
        limit_bytes=given - margin,
        emulated=emulated,
        clamped=budget_bytes > total_bytes,
    )
