"""The records of a key as one study sees them: they may have been measured for another budget."""

from __future__ import annotations

from collections.abc import Iterable

from strategies.knob import Severity, Strategy, Target
from tuner.cards import find_card
from tuner.errors import WrongInput
from tuner.kinds import Flag
from tuner.limits import EMULATED_BELOW
from tuner.outcome import Outcome
from tuner.record import StudyRecord, TrialRecord
from tuner.space import conflict_of
from tuner.spec import make_target


def seen(study: StudyRecord, records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Return what `records` are to `study`, in their order.

    A strategy that is impossible on the study's target (paged states on an emulated card) is left
    out, where another study launched it. Seeing them twice changes nothing.
    """
    target = make_target(study.workload, study.environment.device_type, is_emulated(study), None)
    known: dict[str, bool] = {}
    found = []
    for record in records:
        if record.role == "twin":
            continue  # it measures nothing
        if record.study != study.name and record.fingerprint not in known:
            known[record.fingerprint] = _is_possible(record.strategy, target)
        if record.study == study.name or known[record.fingerprint]:
            found.append(as_seen(study, record))
    return found


def as_seen(study: StudyRecord, record: TrialRecord) -> TrialRecord:
    """Return `record` with the study's flag `emulated`, and no proof where it was made under a larger limit."""
    changes: dict[str, object] = {}
    if record.role == "proof" and record.outcome is Outcome.OK and record.limit_bytes > study.limit_bytes:
        changes["role"] = "search"
    if record.study != study.name and (Flag.EMULATED in record.flags) != is_emulated(study):
        others = tuple(flag for flag in record.flags if flag is not Flag.EMULATED)
        changes["flags"] = (*others, Flag.EMULATED) if is_emulated(study) else others
    return record.model_copy(update=changes) if changes else record


def is_emulated(study: StudyRecord) -> bool:
    """Does the study's budget, or its card, stand for another card than the one it is measured on?"""
    environment = study.environment
    if study.card is not None and environment.device_type == "cuda":
        return not find_card(study.card).is_real(environment.device_name, environment.device_total_bytes)
    return environment.device_type == "cuda" and study.budget_bytes < EMULATED_BELOW * environment.device_total_bytes


def _is_possible(strategy: Strategy, target: Target) -> bool:
    try:
        conflict = conflict_of(strategy, target)
    except WrongInput:  # a knob or value that is no longer there: nothing says that it cannot work
        return True
    return conflict is None or conflict.severity is not Severity.IMPOSSIBLE
