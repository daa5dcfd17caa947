"""A knob's value as YAML or a command line spells it."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from strategies.knob import Value

# YAML 1.1 reads on, yes and true as one and the same, so a value that arrives as a bool may stand for any.
_SPELLINGS: dict[bool, tuple[str, ...]] = {True: ("true", "on", "yes", "1"), False: ("false", "off", "no", "0")}


def read(given: object, values: Sequence[Value]) -> Value | None:
    """Return the one of `values` that `given` stands for; None: it stands for none of them."""
    return next((value for value in values if _means(given, value)), None)


def spell(value: Value) -> str:
    """Return a value as it is written on a command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _means(given: object, value: Value) -> bool:
    if isinstance(value, bool):
        return given is value or (isinstance(given, str) and given.strip().lower() in _SPELLINGS[value])
    if isinstance(value, str):
        return value in _SPELLINGS[given] if isinstance(given, bool) else given == value
    return _number(given) == value


def _number(given: object) -> float | None:
    if isinstance(given, bool):
        return None
    if isinstance(given, (int, float)):
        return given
    try:
        return float(Fraction(given.strip())) if isinstance(given, str) else None
    except (ValueError, ZeroDivisionError):
        return None
