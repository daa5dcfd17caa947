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

from tuner.record import StudyRecord, TrialRecord, best, standing
from tuner.records import Records
from tuner.space import describe
from tuner.units import GIB
from tuner.wording import cause, headroom_bytes

_LEGACY_CONSTRAINTS = "constraints"
"""The system attribute that optuna-dashboard reads: a list of numbers, above zero where one is violated."""


@dataclass(frozen=True, slots=True)
class Known:
    """What our records say about one study."""

    study: StudyRecord
    by_number: dict[int, TrialRecord]
    """The launch of each trial of this study."""
    standing: dict[str, TrialRecord]
    best: TrialRecord | None

    def record_of(self, number: int) -> TrialRecord | None:
        """The record that stands for a trial: a later proof of its strategy above it."""
        own = self.by_number.get(number)
        return None if own is None else self.standing.get(own.fingerprint, own)

    def best_number(self) -> int | None:
        """The trial of the best record's strategy."""
        if self.best is None:
            return None
        alike = [n for n, r in self.by_number.items() if r.fingerprint == self.best.fingerprint]
        return self.best.number if self.best.number in alike else max(alike, default=None)


class ShownStorage(BaseStorage):
    """Reads go to Optuna's storage; trials come back with outcome, figures and constraint of our records."""

    def __init__(self, inner: BaseStorage, records: Records) -> None:
        self.inner, self.records = inner, records

    def known(self, study_id: int) -> Known | None:
        """Read what our records say about a study; None: it is not one of ours."""
        study = self.records.study(self.inner.get_study_name_from_id(study_id))
        if study is None:
            return None
        records = self.records.for_key(study.key)
        own = {r.number: r for r in records if r.study == study.name and r.number is not None}
        stands = standing(records, study.limit_bytes)
        return Known(study, own, stands, best(records, study.limit_bytes))

    def has_best(self, study_id: int) -> bool:
        """Is there a trial to be called best? Of a study that is not ours Optuna decides."""
        known = self.known(study_id)
        return known is None or known.best_number() is not None

    def get_best_trial(self, study_id: int) -> FrozenTrial:
        """Return the trial of our best record; where there is none any that ended, for `has_best` to hide."""
        known = self.known(study_id)
        if known is None:
            return self.inner.get_best_trial(study_id)
        number, trials = known.best_number(), self.get_all_trials(study_id)
        ended = (t for t in trials if t.state is TrialState.COMPLETE)
        return next((t for t in trials if t.number == number), None) or next(ended)

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
    """Return a copy of `trial` with the outcome, the figures and the constraint of the record that stands for it."""
    record = known.record_of(trial.number) if known else None
    if known is None or record is None:
        return trial
    shown = copy.copy(trial)
    shown._user_attrs = {**trial.user_attrs, **attributes(record, known.study.limit_bytes)}
    if record.peak_device_bytes is not None:
        violation = record.peak_device_bytes / known.study.limit_bytes - 1
        shown._system_attrs = {**trial._system_attrs, _LEGACY_CONSTRAINTS: [violation]}
    return shown


def attributes(record: TrialRecord, limit_bytes: int) -> dict[str, Any]:
    """Return what is shown beside a trial."""
    room = headroom_bytes(record, limit_bytes)
    shown = {
        "outcome": cause(record),
        "strategy": describe(record.strategy),
        "source": record.source,
        "tokens_per_s": record.tokens_per_s,
        "peak_gib": None if record.peak_device_bytes is None else round(record.peak_device_bytes / GIB, 3),
        "headroom_gib": None if room is None else round(room / GIB, 3),
        "compile_s": record.compile_seconds,
        "proved": True if record.role == "proof" else None,
        "flags": ", ".join(record.flags) or None,
        "detail": record.detail or None,
    }
    return {name: value for name, value in shown.items() if value is not None}
