"""The one tree of errors, each with the exit code that the command line ends with."""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterable
from enum import IntEnum

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
"""No file can be written any more, whatever is tried next."""
_FULL_WORDS = re.compile(r"No space left on device|Disk quota exceeded|Read-only file system|database or disk is full")


class ExitCode(IntEnum):
    """What the exit status of every ``tuner`` command means."""

    DONE = 0
    """The command did what it was asked for."""
    BUG = 1
    """Our own fault; the message names a log."""
    WRONG_INPUT = 2
    """A flag, key, value or file that cannot be used."""
    NOTHING_FITS = 3
    """It is known that no strategy fits in the budget."""
    MACHINE = 4
    """The machine cannot do it: no compiler, a card that is in use, a full disk."""
    DOES_NOT_HOLD = 5
    """A checked strategy does not hold."""
    NO_VERDICT = 6
    """Time, trials or space ended with no trial ``ok``, and memory alone is not the cause."""
    INTERRUPTED = 130
    """Ctrl-C, SIGTERM or SIGHUP; everything measured so far is kept."""


class TunerError(Exception):
    """An error whose message is one sentence for a person."""

    exit_code: ExitCode = ExitCode.BUG


class WrongInput(TunerError):
    """What the user gave cannot be used. Names the field, the rule and the value."""

    exit_code = ExitCode.WRONG_INPUT

    def __init__(self, field: str, rule: str, value: object = None, hint: str | None = None) -> None:
        self.field, self.rule, self.value = field, rule, value
        given = "" if value is None else f", not {value!r}"
        super().__init__(f"{field}: {rule}{given}" + (f" ({hint})" if hint else ""))


class MachineError(TunerError):
    """The machine cannot do it, whatever the strategy."""

    exit_code = ExitCode.MACHINE


class NothingFits(TunerError):
    """It is known that no strategy fits."""

    exit_code = ExitCode.NOTHING_FITS


class DoesNotHold(TunerError):
    """A strategy that was run again does not hold."""

    exit_code = ExitCode.DOES_NOT_HOLD


class NoVerdict(TunerError):
    """The search ended without an answer."""

    exit_code = ExitCode.NO_VERDICT


class Interrupted(TunerError):
    """The user, or the system, asked the search to stop."""

    exit_code = ExitCode.INTERRUPTED


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return ``did you mean 'x'?`` for the known name closest to ``name``, or None."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else None


def full_disk(text: str) -> str | None:
    """Return the last line of `text` that says that nothing can be written any more; None: there is none."""
    found = [line.strip() for line in text.splitlines() if _FULL_WORDS.search(line)]
    return found[-1][:200] if found else None


def disk_is_full(error: BaseException) -> bool:
    """Was this raised because nothing can be written any more?"""
    return (isinstance(error, OSError) and error.errno in FULL) or full_disk(str(error)) is not None
