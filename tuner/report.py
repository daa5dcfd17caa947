"""What a study found, as data: pure functions from records, without a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from strategies.knob import COMPILE_OFF, Value
from strategies.recipes import REFERENCES, complete, recipes
from tuner.card_words import card_notes
from tuner.errors import ExitCode
from tuner.kinds import Flag
from tuner.misses import Cause, NearestMiss, causes, nearest_miss
from tuner.outcome import Outcome
from tuner.record import StudyRecord, TrialRecord, feasible, standing
from tuner.report_words import answer, would_have_to_give
from tuner.seen import seen
from tuner.space import describe, fingerprint
from tuner.verdict import verdict
from tuner.wording import cause, flag_words, headroom_bytes
from tuner.workload import Frozen

RUNNERS_UP = 3


class Line(Frozen):
    """One strategy in the report."""

    labels: tuple[str, ...]
    """What it is known as: ``winner``, ``reference: baseline``, ``recipe: layer``, ``best eager``."""
    strategy: dict[str, Value]
    description: str
    """Its values that are not baseline."""
    trial: int | None = None
    role: str
    outcome: Outcome
    cause: str
    """The outcome in words, with kind and phase."""
    detail: str = ""
    tokens_per_s: float | None = None
    winner_ratio: float | None = None
    """The winner's throughput over this one's."""
    peak_device_bytes: int | None = None
    headroom_bytes: int | None = None
    compile_seconds: float | None = None
    flags: tuple[Flag, ...] = ()


class Report(Frozen):
    """All that is said at the end of a search."""

    study: str
    workload: str
    device: str
    budget_bytes: int
    limit_bytes: int
    exit_code: ExitCode
    answer: str
    """One sentence."""
    card: str | None = None
    """The card that was searched for; None: a size was given."""
    winner: Line | None = None
    notes: tuple[str, ...] = ()
    """What to know of the winner before it is used, in sentences."""
    proved: bool = False
    comparisons: tuple[Line, ...] = ()
    """References, the best eager strategy and the recipes that were tried."""
    runners_up: tuple[Line, ...] = ()
    launches: int
    outcomes: dict[Outcome, int]
    causes: tuple[Cause, ...] = ()
    """Of what is not `ok`, by outcome, kind and phase; the most frequent first."""
    nearest_miss: NearestMiss | None = None
    would_have_to_give: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    """Every flag that a shown strategy has, explained."""
    next_command: str | None = None


def summary(study: StudyRecord, records: Sequence[TrialRecord], eager_only: bool = False) -> Report:
    """Return what `records` say about `study`.

    Args:
        records: of the study's key, in the order in which they were written.
        eager_only: the user fixed ``mode=off`` (`verdict`).
    """
    records = seen(study, records)
    own = [record for record in records if record.study == study.name]
    fits = feasible(records, study.limit_bytes)
    winner = fits[0] if fits else None
    code = verdict(study, records, eager_only)
    miss = None if winner else nearest_miss(study, records)
    top = _line(study, winner, ("winner",), winner) if winner else None
    comparisons = _comparisons(study, records, fits)
    runners_up = tuple(_line(study, r, ("runner-up",), winner) for r in fits[1 : 1 + RUNNERS_UP])
    shown = [line for line in (top, *comparisons, *runners_up) if line]
    return Report(
        study=study.name,
        workload=study.workload.describe(),
        device=study.environment.device_name,
        budget_bytes=study.budget_bytes,
        limit_bytes=study.limit_bytes,
        exit_code=code,
        answer=answer(study, records, code),
        card=study.card,
        winner=top,
        notes=card_notes(study, winner) if winner else (),
        proved=winner is not None and winner.role == "proof",
        comparisons=comparisons,
        runners_up=runners_up,
        launches=len(own),
        outcomes=dict(Counter(record.outcome for record in own)),
        causes=causes(own),
        nearest_miss=miss,
        would_have_to_give=() if winner else would_have_to_give(study, records, miss.missed_by_bytes if miss else None),
        flags=_explained(shown, study.environment.device_name),
        next_command=f"tuner export --study {study.name} -o best.yaml" if winner else None,
    )


def _comparisons(study: StudyRecord, records: Sequence[TrialRecord], fits: Sequence[TrialRecord]) -> tuple[Line, ...]:
    """References, the best eager and each recipe, one line a strategy."""
    known = standing(records, study.limit_bytes)
    winner = fits[0] if fits else None
    labels: dict[str, list[str]] = {}
    for label, name in _named(study, records):
        if name in known:
            labels.setdefault(name, []).append(label)
    eager = next((r for r in fits if r.strategy["mode"] == COMPILE_OFF), None)
    if eager is not None:
        labels.setdefault(eager.fingerprint, []).append("best eager")
    return tuple(_line(study, known[name], tuple(dict.fromkeys(names)), winner) for name, names in labels.items())


def _named(study: StudyRecord, records: Iterable[TrialRecord]) -> list[tuple[str, str]]:
    """Label and fingerprint of every strategy that has a name, references first.

    A recipe at the largest micro-batch is told by its record alone: its strategy depends on what fits.
    """
    named = [(f"reference: {recipe.name}", recipe) for recipe in REFERENCES]
    named += [(f"recipe: {r.name}", r) for r in recipes(study.workload.adapter) if not r.largest_micro_batch]
    found = [(label, fingerprint(complete(recipe.strategy))) for label, recipe in named]
    largest = {f"recipe: {r.name}" for r in recipes(study.workload.adapter) if r.largest_micro_batch}
    tried = {r.fingerprint: r.source for r in records if r.source in largest}
    return found + [(label, name) for name, label in tried.items()]


def _line(study: StudyRecord, record: TrialRecord, labels: tuple[str, ...], winner: TrialRecord | None) -> Line:
    ratio = None
    if winner is not None and winner.tokens_per_s and record.tokens_per_s:
        ratio = winner.tokens_per_s / record.tokens_per_s
    return Line(
        labels=labels,
        strategy=record.strategy,
        description=describe(record.strategy),
        trial=record.number,
        role=record.role,
        outcome=record.outcome,
        cause=cause(record),
        detail=record.detail,
        tokens_per_s=record.tokens_per_s,
        winner_ratio=ratio,
        peak_device_bytes=record.peak_device_bytes,
        headroom_bytes=headroom_bytes(record, study.limit_bytes),
        compile_seconds=record.compile_seconds,
        flags=record.flags,
    )


def _explained(lines: Iterable[Line], device_name: str) -> tuple[str, ...]:
    flags = dict.fromkeys(flag for line in lines for flag in line.flags)
    return tuple(flag_words(flag, device_name) for flag in flags)
