"""Sizes, durations and counts between the form a person writes and the integers the code keeps.

The only place with ``2**30``: inside the code a size is an integer of bytes named ``*_bytes``.
"""

from __future__ import annotations

import re

GIB = 2**30
MIB = 2**20

_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>[smhd]?)")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def gib_to_bytes(gib: float) -> int:
    """Return ``gib`` GiB as bytes (24 -> 24 * 2**30), rounded down."""
    return int(gib * GIB)


def format_gib(size_bytes: int | None) -> str:
    """Return a size for a person, in GiB with two digits; ``?`` where it is not known."""
    return "?" if size_bytes is None else f"{size_bytes / GIB:.2f} GiB"


def format_size(size_bytes: int) -> str:
    """Return a size for a person in the unit that suits it: ``1.50 GiB``, ``48.0 MiB``, ``12 KiB``."""
    if size_bytes >= GIB:
        return format_gib(size_bytes)
    return f"{size_bytes / MIB:.1f} MiB" if size_bytes >= MIB else f"{size_bytes / 1024:.0f} KiB"


def parse_duration(text: str) -> float:
    """Return the seconds that ``90``, ``90s``, ``15m``, ``1.5h``, ``1h30m`` or ``1d`` stand for.

    Raises:
        ValueError: the text is none of these forms.
    """
    seconds, position = 0.0, 0
    for match in _DURATION.finditer(text):
        if match.start() != position:
            break
        seconds += float(match["number"]) * _SECONDS[match["unit"]]
        position = match.end()
    if not text or position != len(text):
        raise ValueError("a duration is a number with s, m, h or d behind it, as 90s, 15m or 1h30m")
    return seconds


def parse_count(value: object) -> int:
    """Return the count that ``500`` or ``"500"`` stands for.

    Raises:
        ValueError: it is not a whole number of 1 or more.
    """
    if isinstance(value, bool) or not re.fullmatch(r"0*[1-9]\d{0,17}", str(value).strip()):
        raise ValueError("must be a whole number of 1 or more")
    return int(str(value))


def format_duration(seconds: float) -> str:
    """Return a duration for a person: ``8.3 s``, ``2 m 05 s``, ``1 h 02 m``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} m {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} m"
