"""Our own tables, the truth about what was measured."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from strategies.knob import Value
from tuner.outcome import Outcome
from tuner.protocol import Environment, Flag, Kind, Phase, TrialResult
from tuner.workload import Frozen, Workload

Role = Literal["search", "retry", "proof", "run"]
"""Why a strategy was launched: by the search, again after a crash or a moved cap, as the final proof, by `tuner run`."""


class TrialRecord(Frozen):
    """One launch of one strategy, as it is kept for ever."""

    uuid: str
    key: str
    """Workload, card and versions: `Environment.key`."""
    study: str
    number: int | None = None
    """The Optuna trial; None for a proof, a retry or a run."""
    role: Role = "search"
    source: str = ""
    """Who proposed it: ``reference: baseline``, ``recipe: layer-amb``, ``sampler: tpe``."""
    strategy: dict[str, Value]
    fingerprint: str
    outcome: Outcome
    kind: Kind | None = None
    phase: Phase | None = None
    flags: tuple[Flag, ...] = ()
    detail: str = ""
    tokens_per_s: float | None = None
    peak_device_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    compile_seconds: float | None = None
    budget_bytes: int
    limit_bytes: int
    cap_bytes: int | None = None
    needed_bytes: int | None = None
    """Of an out-of-memory: the lower bound of the need."""
    deadlines: dict[Phase, float] = Field(default_factory=dict)
    seed: int = 0
    started_at: float
    seconds: float
    result: TrialResult | None = None
    tail: str = ""
    """The last lines of the log, where the outcome is not `ok`."""


class StudyRecord(Frozen):
    """One study: a key and a budget."""

    name: str
    key: str
    budget_bytes: int
    limit_bytes: int
    workload: Workload
    environment: Environment
    created_at: float
