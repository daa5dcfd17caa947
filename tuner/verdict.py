"""What a study's records say as a whole: an answer, nothing fits, or no verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from strategies.knob import COMPILE_OFF
from strategies.recipes import complete, leanest
from tuner.errors import ExitCode
from tuner.kinds import Kind, Phase
from tuner.outcome import Outcome
from tuner.record import StudyRecord, TrialRecord, best, standing
from tuner.space import fingerprint

MEMORY = frozenset({Outcome.OOM, Outcome.OVER_BUDGET})
"""Outcomes that memory alone decided."""
BEFORE_ANY_KNOB = frozenset({Phase.START, Phase.LOAD})
"""Out of memory here: no knob changes it."""


def verdict(study: StudyRecord, records: Sequence[TrialRecord], eager_only: bool = False) -> ExitCode:
    """Return DONE, NOTHING_FITS or NO_VERDICT.

    Args:
        records: of the study's key, in the order in which they were written; those of other budgets
            count where they decide here.
        eager_only: the user fixed ``mode=off``, so the eager leanest recipe decides alone.
    """
    if best(records, study.limit_bytes) is not None:
        return ExitCode.DONE
    if dies_while_loading(study, records) or leanest_died(study, records, eager_only):
        return ExitCode.NOTHING_FITS
    return ExitCode.NO_VERDICT


def dies_while_loading(study: StudyRecord, records: Iterable[TrialRecord]) -> TrialRecord | None:
    """Return a record that ran out of memory before any knob could matter; None: there is none.

    One that was only suspected ends no search: it is read from a log, and a library that cannot be
    loaded says much the same.
    """
    known = standing(records, study.limit_bytes).values()
    dead = (r for r in known if r.outcome is Outcome.OOM and r.phase in BEFORE_ANY_KNOB)
    return next((r for r in dead if r.kind is not Kind.SUSPECTED), None)


def is_of_memory(record: TrialRecord) -> bool:
    """Did memory alone decide it? Not said of what was only suspected before the model was there."""
    guessed = record.kind is Kind.SUSPECTED and record.phase in BEFORE_ANY_KNOB
    return record.outcome in MEMORY and not guessed


def leanest_died(study: StudyRecord, records: Iterable[TrialRecord], eager_only: bool = False) -> bool:
    """Did the strategies that need least memory all die of it?"""
    wanted = [complete(recipe.strategy) for recipe in leanest(study.workload.adapter)]
    if eager_only:
        wanted = [strategy for strategy in wanted if strategy["mode"] == COMPILE_OFF]
    dead = {name for name, r in standing(records, study.limit_bytes).items() if is_of_memory(r)}
    return all(fingerprint(strategy) in dead for strategy in wanted)
