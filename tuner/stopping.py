"""Ctrl-C, SIGTERM and SIGHUP all ask for the same orderly end."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def never() -> bool:
    """Nobody asks for the end."""
    return False


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Catch the signals that end a program; what is returned says whether one came.

    While this is open none of them interrupts the program: it looks, and ends what it has begun.
    """
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
