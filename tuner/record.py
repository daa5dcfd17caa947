"""One launch of one strategy as it is kept for ever, and what such records decide."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from pydantic import Field

from strategies.knob import Value
from tuner.environment import Environment
from tuner.kinds import Flag, Kind, Phase
from tuner.outcome import Outcome
from tuner.protocol import TrialResult
from tuner.workload import Frozen, Workload

Role = Literal["search", "retry", "proof", "run", "twin"]
"""Why a strategy was launched: by the search, again after a crash or a moved cap, as the proof, by `tuner run`,
or on a slice beside a twin, for loss and gradient alone (its key is the slice's)."""


MEASURED_UNDER = ("CUBLAS_WORKSPACE_CONFIG", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "GOMP_SPINCOUNT")
"""Variables that change memory or speed, and that a training script needs to get what was measured."""


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
    process_environment: dict[str, str] = Field(default_factory=dict)
    """Variables of `MEASURED_UNDER`, as the worker had them; empty in records from before."""
    twin: dict[str, Value] | None = None
    """Of a twin test: the strategy that it was compared with."""
    twin_uuid: str = ""
    """The twin test that decided it; it was not launched itself."""
    started_at: float
    seconds: float
    result: TrialResult | None = None
    tail: str = ""
    """The last lines of the log, where the outcome is not `ok`."""


class StudyRecord(Frozen):
    """One study: a key and a budget, or a card."""

    name: str
    key: str
    budget_bytes: int
    card: str | None = None
    """The card that the budget is of, by its name in `tuner.cards`; None: a size was given."""
    limit_bytes: int
    workload: Workload
    environment: Environment
    created_at: float


class StudySummary(Frozen):
    """A study with what came of it."""

    study: StudyRecord
    used_at: float
    """Unix time at which a search last opened it."""
    counts: dict[Outcome, int]
    """Launches by outcome: retries, proofs and runs included, twin tests and what they forbade not."""


def decides(record: TrialRecord, *, limit_bytes: int, cap_bytes: int | None, deadlines: Mapping[Phase, float]) -> bool:
    """Does `record` say what its strategy would come to under this limit, cap and these deadlines?

    Args:
        limit_bytes: what peak device may reach.
        cap_bytes: what the allocator may reserve; None on a CPU.
        deadlines: seconds by phase; a phase that is missing has no deadline.
    """
    match record.outcome:
        case Outcome.OK:
            return record.peak_device_bytes is not None and limit_bytes >= record.peak_device_bytes
        case Outcome.OVER_BUDGET:
            return limit_bytes <= record.limit_bytes
        case Outcome.OOM:
            return _oom_decides(record, limit_bytes, cap_bytes)
        case Outcome.TIMEOUT:
            return _timeout_decides(record, deadlines)
        case Outcome.CRASH:
            return record.role == "retry"
        case Outcome.DEVICE_NOT_CLEAN | Outcome.INTERRUPTED:
            return False
        case _:
            return True


def _oom_decides(record: TrialRecord, limit_bytes: int, cap_bytes: int | None) -> bool:
    if record.cap_bytes is None or cap_bytes is None:
        return limit_bytes <= record.limit_bytes
    if record.needed_bytes is not None and cap_bytes < record.needed_bytes:
        return True
    # A need under the cap is fragmentation, or a cap that has moved: it is run once more, and then that stands.
    return (record.needed_bytes is None or record.role in ("retry", "proof")) and cap_bytes <= record.cap_bytes


def _timeout_decides(record: TrialRecord, deadlines: Mapping[Phase, float]) -> bool:
    phases = record.deadlines if record.phase is None else [record.phase]
    given = [(record.deadlines.get(p, 0.0), deadlines.get(p, float("inf"))) for p in phases]
    return bool(given) and all(new <= old for old, new in given)


def worth_another(record: TrialRecord, *, limit_bytes: int, cap_bytes: int | None) -> bool:
    """May a strategy that died of memory, or went over, come to something else if it is run once more?

    So where an out-of-memory needed less than the cap, and where the cap has moved down since a
    run that went over this same limit.
    """
    if record.role != "search" or cap_bytes is None or record.cap_bytes is None:
        return False
    if record.outcome is Outcome.OVER_BUDGET:
        return limit_bytes == record.limit_bytes and cap_bytes < record.cap_bytes
    return record.outcome is Outcome.OOM and record.needed_bytes is not None and record.needed_bytes <= cap_bytes


def standing(
    records: Iterable[TrialRecord], limit_bytes: int, deadlines: Mapping[Phase, float] | None = None
) -> dict[str, TrialRecord]:
    """Return by fingerprint the record that stands under a limit: the latest proof, else the latest launch.

    `records` are of one key, in the order in which they were written. Where nothing is said about
    the limit, there is no entry. A `run` that was ok confirms what stands, and leaves its figures as
    they are; one that was not refutes an unproved launch.

    Args:
        deadlines: seconds by phase, now: a timeout under shorter ones says nothing. None: those of
            the latest launch of a search, so that a report sees what that search saw.
    """
    found: dict[str, TrialRecord] = {}
    # A twin test says nothing of speed and peak; where a model cannot be cut its key is the study's own.
    known = [record for record in records if record.role != "twin"]
    if deadlines is None:
        deadlines = next((record.deadlines for record in reversed(known) if record.role != "run"), {})
    crashes = confirmed_crashes(known)
    for record in known:
        before = found.get(record.fingerprint)
        outranked = before is not None and before.role == "proof" and record.role != "proof"
        heard = record.uuid in crashes if record.outcome is Outcome.CRASH else _speaks(record, limit_bytes, deadlines)
        if heard and not outranked and not _confirms(record, before):
            found[record.fingerprint] = record
    return found


def confirmed_crashes(records: Iterable[TrialRecord]) -> frozenset[str]:
    """Return the uuids of the crashes that count: a launch's second, and a proof's second in a row."""
    found: set[str] = set()
    once: set[str] = set()
    for record in records:
        if record.outcome is Outcome.CRASH:
            if record.role == "retry" or (record.role == "proof" and record.fingerprint in once):
                found.add(record.uuid)
            if record.role == "proof":
                once.add(record.fingerprint)
        elif record.role == "proof" and record.outcome not in (Outcome.DEVICE_NOT_CLEAN, Outcome.INTERRUPTED):
            once.discard(record.fingerprint)
    return frozenset(found)


def _confirms(record: TrialRecord, before: TrialRecord | None) -> bool:
    if before is None or record.role != "run":
        return False
    return record.outcome is Outcome.OK and before.outcome is Outcome.OK


def _speaks(record: TrialRecord, limit_bytes: int, deadlines: Mapping[Phase, float]) -> bool:
    match record.outcome:
        case Outcome.OK:
            return record.peak_device_bytes is not None and record.peak_device_bytes <= limit_bytes
        case Outcome.OVER_BUDGET | Outcome.OOM:
            return limit_bytes <= record.limit_bytes
        case Outcome.DEVICE_NOT_CLEAN | Outcome.INTERRUPTED:
            return False
        case Outcome.TIMEOUT:
            return not deadlines or _timeout_decides(record, deadlines)
        case _:
            return True


def feasible(
    records: Iterable[TrialRecord], limit_bytes: int, *, rate: Callable[[TrialRecord], float] | None = None
) -> list[TrialRecord]:
    """Return the standing records that are `ok` within the limit, the fastest first; ties by the lower peak.

    Args:
        rate: tokens per second to rank by (`break_even.Ranking.rate`); None: the throughput.
    """
    fit = [r for r in standing(records, limit_bytes).values() if r.outcome is Outcome.OK and r.tokens_per_s is not None]
    return sorted(fit, key=lambda r: (-(rate(r) if rate else r.tokens_per_s or 0.0), r.peak_device_bytes or 0))


def best(
    records: Iterable[TrialRecord], limit_bytes: int, *, rate: Callable[[TrialRecord], float] | None = None
) -> TrialRecord | None:
    """Return the fastest record that is `ok` within the limit; None: nothing fits so far.

    The latest proof of a strategy stands above its trial: its figures count, and a proof that
    failed takes the strategy out.
    """
    return next(iter(feasible(records, limit_bytes, rate=rate)), None)
