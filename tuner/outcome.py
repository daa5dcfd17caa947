"""What happened to a trial, decided in one pure function from one table."""

from __future__ import annotations

from enum import StrEnum

from tuner.protocol import Flag, Kind, Phase
from tuner.workload import Frozen


class Outcome(StrEnum):
    """The class of what happened to a trial."""

    OK = "ok"
    """It ran whole and peak device is within the limit."""
    OVER_BUDGET = "over_budget"
    """It ran whole and peak device is above the limit."""
    CONFLICT = "conflict"
    """The worker found that this strategy cannot work here."""
    OOM = "oom"
    """Out of memory: the allocator's error, the cap's marker, or the signals that stand for it."""
    GRAPH_BREAK = "graph_break"
    """fullgraph was asked and is not possible."""
    COMPILE_ERROR = "compile_error"
    """dynamo, inductor or Triton failed."""
    COMPILE_NOT_APPLIED = "compile_not_applied"
    """Fewer of the chosen modules are compiled than asked."""
    WRONG_RESULT = "wrong_result"
    """NaN, no gradient, or parity lost."""
    UNSTABLE = "unstable"
    """Never settled, recompiled in `steady`, or memory still rising."""
    TIMEOUT = "timeout"
    """A phase ran into its deadline."""
    CRASH = "crash"
    """None of the others; tried once more at once."""
    DEVICE_NOT_CLEAN = "device_not_clean"
    """The machine, not the strategy."""
    INTERRUPTED = "interrupted"
    """The study ended or was stopped; asked again on resume."""


DECIDED_BY_STRATEGY = frozenset(Outcome) - {Outcome.CRASH, Outcome.DEVICE_NOT_CLEAN, Outcome.INTERRUPTED}
"""Outcomes that are the strategy's own doing."""


class Verdict(Frozen):
    """The outcome of one attempt, with what it was decided from."""

    outcome: Outcome
    kind: Kind | None = None
    phase: Phase | None = None
    """Where it ended; None for `ok`."""
    flags: tuple[Flag, ...] = ()
    detail: str = ""
    """One sentence of cause; empty for a plain `ok`."""
    peak_device_bytes: int | None = None
    """The largest of all phases, of the worker's own figures and the parent's samples."""
