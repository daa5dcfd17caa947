"""Why strategies did not make it: counted by cause, and the one that came closest to fitting."""

from __future__ import annotations

from collections.abc import Iterable

from tuner.advice import advice
from tuner.kinds import Kind, Phase, Replay
from tuner.outcome import Outcome
from tuner.record import StudyRecord, TrialRecord, standing
from tuner.space import describe
from tuner.verdict import MEMORY
from tuner.wording import cause, replay_of
from tuner.workload import Frozen

SHOWN_BLOCKS = 3
"""Of the ten that a record has."""


class Cause(Frozen):
    """Launches that ended alike."""

    outcome: Outcome
    kind: Kind | None = None
    phase: Phase | None = None
    words: str
    count: int
    example: str = ""
    """The detail of the first."""
    advice: str | None = None
    """What a person can do about it; None: nothing need be."""


class NearestMiss(Frozen):
    """The strategy that came closest to fitting."""

    description: str
    need_bytes: int
    """Its peak, or the lower bound of its need."""
    at_least: bool
    """It ran out of memory: the need is at least that."""
    missed_by_bytes: int
    held_by: tuple[str, ...] = ()
    """What the allocator's snapshot says held the most when memory ran out."""


def causes(records: Iterable[TrialRecord]) -> tuple[Cause, ...]:
    """Count what is not `ok` by outcome, kind, phase and what was replayed; the most frequent first."""
    groups: dict[tuple[Outcome, Kind | None, Phase | None, Replay | None], list[TrialRecord]] = {}
    for record in records:
        if record.outcome is not Outcome.OK:
            groups.setdefault((record.outcome, record.kind, record.phase, replay_of(record)), []).append(record)
    found = [
        Cause(
            outcome=o,
            kind=k,
            phase=p,
            words=cause(group[0]),
            count=len(group),
            example=group[0].detail,
            advice=advice(o, k),
        )
        for (o, k, p, _), group in groups.items()
    ]
    return tuple(sorted(found, key=lambda c: -c.count))


def nearest_miss(study: StudyRecord, records: Iterable[TrialRecord]) -> NearestMiss | None:
    """Return what needed least of all that memory refused; None: memory refused nothing, or no need is known."""
    needs = [
        (need, record)
        for record in standing(records, study.limit_bytes).values()
        if record.outcome in MEMORY and (need := need_bytes(record)) is not None
    ]
    if not needs:
        return None
    need, record = min(needs, key=lambda pair: pair[0])
    return NearestMiss(
        description=describe(record.strategy),
        need_bytes=need,
        at_least=record.outcome is Outcome.OOM,
        missed_by_bytes=max(0, need - study.limit_bytes),
        held_by=record.result.largest_blocks[:SHOWN_BLOCKS] if record.result else (),
    )


def need_bytes(record: TrialRecord) -> int | None:
    """What the strategy needs of the device: its peak, or of an out-of-memory a lower bound."""
    if record.outcome is Outcome.OVER_BUDGET:
        return record.peak_device_bytes
    if record.needed_bytes is None:
        return None
    # The lower bound is the allocator's; what lies outside of it is the difference of limit and cap.
    outside = 0 if record.cap_bytes is None else record.limit_bytes - record.cap_bytes
    return record.needed_bytes + outside
