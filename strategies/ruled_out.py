"""A part of the space that needs no trial any more, since trials have shown what it comes to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RuledOut:
    """All strategies that have, for each knob named, one of its values given here.

    Equal findings are counted as one: it holds once so many different strategies have shown it.
    """

    where: tuple[tuple[str, tuple[str | int | float | bool, ...]], ...]
    """Knob and values, as ``("optimizer", ("adamw-8bit",))``."""
    reason: str
    """One sentence for a person."""
    trials: int = 1
    """How many different strategies have to show it."""
