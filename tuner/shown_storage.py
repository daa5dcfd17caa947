"""Optuna's storage as the dashboard is to see it: read only, with what our records say laid over the trials.

optuna-dashboard 0.21 reads constraints under the key that Optuna used before version 5, and names as
best the trial with the largest value whether it fits or not. Nothing is written for this.
"""

from __future__ import annotations

import copy
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from optuna.distributions import BaseDistribution
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.study._frozen import FrozenStudy
from optuna.trial import FrozenTrial, TrialState

from tuner.outcome import Outcome
from tuner.record import StudyRecord, TrialRecord, best, standing
from tuner.records import Records
from tuner.seen import seen
from tuner.told import FINGERPRINT, attributes_of, constraints_of, state_of, value_of
from tuner.units import GIB
from tuner.wording import cause, headroom_bytes

_LEGACY_CONSTRAINTS = "constraints"
"""The system attribute that optuna-dashboard reads: a list of numbers, above zero where one is violated."""


@dataclass(frozen=True, slots=True)
class Known:
    """What our records say about one study."""

    study: StudyRecord
    standing: dict[str, TrialRecord]
    """By fingerprint, the record that stands: a later proof of a strategy above its trial."""
    best: TrialRecord | None

    def record_of(self, trial: FrozenTrial) -> TrialRecord | None:
        """The record that stands for a trial; None for one that decided nothing."""
        if trial.state not in (TrialState.COMPLETE, TrialState.PRUNED):
            return None
        return self.standing.get(str(trial.user_attrs.get(FINGERPRINT)))

    def is_best(self, trial: FrozenTrial) -> bool:
        """Is it the trial of the best record's strategy?"""
        record = self.record_of(trial)
        return record is not None and self.best is not None and record.fingerprint == self.best.fingerprint


class ShownStorage(BaseStorage):
    """Reads go to Optuna's storage; trials come back with outcome, figures and constraint of our records."""

    def __init__(self, inner: BaseStorage, records: Records) -> None:
        self.inner, self.records = inner, records

    def known(self, study_id: int) -> Known | None:
        """Read what our records say about a study; None: it is not one of ours."""
        study = self.records.study(self.inner.get_study_name_from_id(study_id))
        if study is None:
            return None
        records = seen(study, self.records.for_key(study.key))
        return Known(study, standing(records, study.limit_bytes), best(records, study.limit_bytes))

    def has_best(self, study_id: int) -> bool:
        """Is there a trial to be called best? Of a study that is not ours Optuna decides."""
        known = self.known(study_id)
        return known is None or any(known.is_best(t) for t in self.inner.get_all_trials(study_id, False))

    def get_best_trial(self, study_id: int) -> FrozenTrial:
        """Return the trial of our best record; where there is none any that ended, for `has_best` to hide."""
        known = self.known(study_id)
        if known is None:
            return self.inner.get_best_trial(study_id)
        trials = self.get_all_trials(study_id, False)
        ended = (t for t in trials if t.state is TrialState.COMPLETE)
        return next((t for t in trials if known.is_best(t)), None) or next(ended)

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """Return the trials, overlaid."""
        known = self.known(study_id)
        return [overlaid(t, known) for t in self.inner.get_all_trials(study_id, deepcopy, states)]

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """Return one trial as Optuna has it."""
        return self.inner.get_trial(trial_id)

    def get_all_studies(self) -> list[FrozenStudy]:
        """Return the studies by id, which is how the dashboard lists those of a database."""
        return sorted(self.inner.get_all_studies(), key=lambda study: study._study_id)

    def get_study_id_from_name(self, study_name: str) -> int:
        """Forwarded."""
        return self.inner.get_study_id_from_name(study_name)

    def get_study_name_from_id(self, study_id: int) -> str:
        """Forwarded."""
        return self.inner.get_study_name_from_id(study_id)

    def get_study_directions(self, study_id: int) -> list[StudyDirection]:
        """Forwarded."""
        return self.inner.get_study_directions(study_id)

    def get_study_user_attrs(self, study_id: int) -> dict[str, Any]:
        """Forwarded."""
        return self.inner.get_study_user_attrs(study_id)

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        """Forwarded."""
        return self.inner.get_study_system_attrs(study_id)

    def create_new_study(self, directions: Sequence[StudyDirection], study_name: str | None = None) -> int:
        """Refused."""
        _refuse()

    def delete_study(self, study_id: int) -> None:
        """Refused."""
        _refuse()

    def set_study_user_attr(self, study_id: int, key: str, value: Any) -> None:
        """Refused."""
        _refuse()

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        """Refused."""
        _refuse()

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        """Refused."""
        _refuse()

    def set_trial_param(
        self, trial_id: int, param_name: str, param_value_internal: float, distribution: BaseDistribution
    ) -> None:
        """Refused."""
        _refuse()

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        """Refused."""
        _refuse()

    def set_trial_intermediate_value(self, trial_id: int, step: int, intermediate_value: float) -> None:
        """Refused."""
        _refuse()

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Refused."""
        _refuse()

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Refused."""
        _refuse()


def _refuse() -> NoReturn:
    raise PermissionError("the dashboard of compile-tuner only shows; it changes nothing")


def overlaid(trial: FrozenTrial, known: Known | None) -> FrozenTrial:
    """Return a copy of `trial` as if the record that stands for it had been told: a told trial cannot be changed."""
    record = known.record_of(trial) if known else None
    if known is None or record is None:
        return trial
    limit_bytes = known.study.limit_bytes
    shown, value = copy.copy(trial), value_of(record)
    shown.state = state_of(record)
    shown._values = None if value is None else [value]
    shown._user_attrs = {**trial.user_attrs, **attributes(record, limit_bytes)}
    constraints = list(constraints_of(record, limit_bytes).values())
    shown._system_attrs = {**trial._system_attrs, **({_LEGACY_CONSTRAINTS: constraints} if constraints else {})}
    return shown


def attributes(record: TrialRecord, limit_bytes: int) -> dict[str, Any]:
    """Return what is shown beside a trial: what a search tells, and what only the records know."""
    room = headroom_bytes(record, limit_bytes)
    more = {
        "cause": cause(record),
        "headroom_gib": None if room is None else round(room / GIB, 3),
        "proved": True if record.role == "proof" and record.outcome is Outcome.OK else None,
        "flags": ", ".join(record.flags) or None,
    }
    return attributes_of(record) | {name: value for name, value in more.items() if value is not None}
