"""What a study found, as data: pure functions from records, without a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tuner.break_even import Ranking
from tuner.card_words import card_notes
from tuner.errors import ExitCode
from tuner.memory_table import MemoryColumn, memory_columns
from tuner.misses import Cause, NearestMiss, causes, nearest_miss
from tuner.outcome import Outcome
from tuner.record import StudyRecord, TrialRecord, feasible, standing
from tuner.report_lines import Line, compared, line_of
from tuner.report_speed import Speeds
from tuner.report_words import answer, would_have_to_give
from tuner.seen import seen
from tuner.truth_words import truth_notes
from tuner.verdict import verdict
from tuner.wording import flag_words
from tuner.workload import Frozen

RUNNERS_UP = 3


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
    train_steps: int | None = None
    """Optimizer steps of the run that strategies are ranked by, compiling included; None: by throughput."""
    card: str | None = None
    """The card that was searched for; None: a size was given."""
    winner: Line | None = None
    notes: tuple[str, ...] = ()
    """What to know of the winner before it is used, in sentences."""
    proved: bool = False
    comparisons: tuple[Line, ...] = ()
    """References, the best eager strategy and the recipes that were tried."""
    runners_up: tuple[Line, ...] = ()
    memory: tuple[MemoryColumn, ...] = ()
    """Where the memory of the winner, the references and the best eager goes."""
    launches: int
    outcomes: dict[Outcome, int]
    causes: tuple[Cause, ...] = ()
    """Of what is not `ok`, by outcome, kind and phase; the most frequent first."""
    nearest_miss: NearestMiss | None = None
    would_have_to_give: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    """Every flag that a shown strategy has, explained."""
    next_command: str | None = None


def summary(
    study: StudyRecord, records: Sequence[TrialRecord], eager_only: bool = False, *, train_steps: int | None = None
) -> Report:
    """Return what `records` say about `study`.

    Args:
        records: of the study's key, in the order in which they were written.
        eager_only: the user fixed ``mode=off`` (`verdict`).
        train_steps: steps of the run to rank by, compiling included; None: by throughput alone.
    """
    records = seen(study, records)
    ranking = Ranking(train_steps, records)
    own = [record for record in records if record.study == study.name]
    fits = feasible(records, study.limit_bytes, rate=ranking.rate)
    winner = fits[0] if fits else None
    code = verdict(study, records, eager_only)
    miss = None if winner else nearest_miss(study, records)
    known = standing(records, study.limit_bytes)
    speeds = Speeds(study.environment.device_type, known, ranking)
    top = line_of(study, winner, ("winner",), winner, known, speeds) if winner else None
    named = compared(study, records, known, fits)
    comparisons = tuple(line_of(study, record, labels, winner, known, speeds) for record, labels in named)
    runners_up = tuple(line_of(study, r, ("runner-up",), winner, known, speeds) for r in fits[1 : 1 + RUNNERS_UP])
    shown = [line for line in (top, *comparisons, *runners_up) if line]
    return Report(
        study=study.name,
        workload=study.workload.describe(),
        device=study.environment.device_name,
        budget_bytes=study.budget_bytes,
        limit_bytes=study.limit_bytes,
        exit_code=code,
        answer=answer(study, records, code, ranking),
        train_steps=train_steps,
        card=study.card,
        winner=top,
        notes=(*(card_notes(study, winner) if winner else ()), *truth_notes(study, records, fits)),
        proved=winner is not None and winner.role == "proof",
        comparisons=comparisons,
        runners_up=runners_up,
        memory=_memory(winner, named),
        launches=sum(not record.twin_uuid for record in own),
        outcomes=dict(Counter(record.outcome for record in own)),
        causes=causes(own),
        nearest_miss=miss,
        would_have_to_give=() if winner else would_have_to_give(study, records, miss.missed_by_bytes if miss else None),
        flags=_explained(shown, study.environment.device_name),
        next_command=_export_command(study, train_steps) if winner else None,
    )


def _export_command(study: StudyRecord, train_steps: int | None) -> str:
    ranked = "" if train_steps is None else f" --train-steps {train_steps}"
    return f"tuner export --study {study.name}{ranked} -o best.yaml"


def _memory(
    winner: TrialRecord | None, named: Iterable[tuple[TrialRecord, tuple[str, ...]]]
) -> tuple[MemoryColumn, ...]:
    of = [("winner", winner)] if winner else []
    for record, labels in named:
        shown = next((name for name in labels if name == "best eager" or name.startswith("reference: ")), None)
        of += [(shown.removeprefix("reference: "), record)] if shown else []
    return memory_columns(of)


def _explained(lines: Iterable[Line], device_name: str) -> tuple[str, ...]:
    flags = dict.fromkeys(flag for line in lines for flag in line.flags)
    return tuple(flag_words(flag, device_name) for flag in flags)
