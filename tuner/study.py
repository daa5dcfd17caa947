"""An Optuna study of ours: created or resumed, asked and told."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.trial import FrozenTrial, Trial, TrialState

from strategies.knob import Strategy, Target, Value
from tuner.encoding import Params, decode, distributions, encode, knobs_digest
from tuner.errors import WrongInput
from tuner.outcome import Outcome
from tuner.record import StudyRecord, TrialRecord
from tuner.records import Records
from tuner.sampler import DRAWS, LegalSampler, SpaceExhausted, derived_seed, make_sampler
from tuner.space import Space, fingerprint
from tuner.storage import Storage
from tuner.told import DETAIL, OUTCOME, attributes_of, constraints_of, state_of, value_of
from tuner.units import GIB

__all__ = [
    "SpaceExhausted",
    "StudyHandle",
    "ask",
    "decode",
    "default_name",
    "distributions",
    "encode",
    "fail",
    "open_study",
    "tell",
]
METRIC = "tokens_per_s"


@dataclass(slots=True, kw_only=True)
class StudyHandle:
    """An open study; only the holder of its lease asks and tells."""

    study: optuna.Study
    storage: Storage
    target: Target
    limit_bytes: int
    sampler: LegalSampler
    in_flight: set[int] = field(default_factory=set)
    """Numbers of the trials that were asked and not told yet."""
    left_out: set[str] = field(default_factory=set)
    """Fingerprints that this search does not launch, though nothing, or too little, is known of them."""

    @property
    def known(self) -> set[str]:
        """Fingerprints that are not proposed: the search adds what it knows to be equivalent."""
        return self.sampler.known

    def trials(self, *states: TrialState) -> list[FrozenTrial]:
        """Return the trials in these states, by number."""
        return self.storage.retry(lambda: self.study.get_trials(deepcopy=False, states=states or None))


def default_name(study: StudyRecord, target: Target) -> str:
    """Return the name of the study of a key and a budget, or a card; another one where the knobs have changed.

    A card is another study than its size alone: it has another limit, which Optuna was told of in
    every constraint. The records are the key's, so nothing is measured twice.
    """
    size = study.card or f"{study.budget_bytes / GIB:g}gib"
    return f"{study.key[:8]}-{size}-{knobs_digest(target)[:4]}"


def open_study(
    storage: Storage,
    records: Records,
    *,
    name: str,
    target: Target,
    study_record: StudyRecord,
    sampler: str,
    seed: int,
    space: Space,
    known: Iterable[str] = (),
    slots: int = 1,
) -> StudyHandle:
    """Create the study, or resume it.

    Args:
        sampler: ``tpe``, ``gp`` or ``random``.
        space: what may be proposed this time.
        known: fingerprints that are not proposed.
        slots: trials at a time.

    Raises:
        WrongInput: a study of that name has another key, budget, card or list of values.
    """
    before = records.study(name)
    if before is not None:
        _check_same(before, study_record)
    study = storage.retry(
        lambda: optuna.create_study(storage=storage.optuna, study_name=name, direction="maximize", load_if_exists=True)
    )
    storage.retry(lambda: _describe_study(study, study_record, target))
    records.add_study(study_record.model_copy(update={"name": name}))
    drawn = derived_seed(seed, len(storage.retry(lambda: study.get_trials(deepcopy=False))))
    study.sampler = LegalSampler(
        make_sampler(sampler, drawn, slots), space, set(known), draws=DRAWS[sampler], seed=drawn
    )
    return StudyHandle(
        study=study, storage=storage, target=target, limit_bytes=study_record.limit_bytes, sampler=study.sampler
    )


def _check_same(before: StudyRecord, now: StudyRecord) -> None:
    if before.budget_bytes != now.budget_bytes:
        _refuse(before, "budget", before.budget_bytes / GIB, now.budget_bytes / GIB)
    if before.card != now.card:
        _refuse(before, "card", before.card or "none", now.card or "none")
    if before.key == now.key:
        return
    for old, new in ((before.workload, now.workload), (before.environment, now.environment)):
        for name in type(old).model_fields:
            if getattr(old, name) != getattr(new, name):
                _refuse(before, name, getattr(old, name), getattr(new, name))
    _refuse(before, "key", before.key, now.key)


def _refuse(study: StudyRecord, field_name: str, old: object, new: object) -> None:
    raise WrongInput("study", f"{study.name!r} was made with {field_name} {old}", new, "give another --study")


def _describe_study(study: optuna.Study, record: StudyRecord, target: Target) -> None:
    attrs, digest = study.user_attrs, knobs_digest(target)
    if "key" not in attrs and study.get_trials(deepcopy=False):
        raise WrongInput("study", f"{study.study_name!r} is a study of Optuna's that this tool did not make")
    if attrs.get("knobs", digest) != digest:
        rule = f"{study.study_name!r} was made with other knobs or values of them"
        raise WrongInput("study", rule, hint="give another --study: records are taken over")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        study.set_metric_names([METRIC])
    wanted = {
        "key": record.key,
        "knobs": digest,
        "budget_gib": record.budget_bytes / GIB,
        "limit_bytes": record.limit_bytes,
        "workload": record.workload.describe(),
        "device": record.environment.device_name,
    }
    for name, value in wanted.items():
        if attrs.get(name) != value:
            study.set_user_attr(name, value)


def ask(handle: StudyHandle, strategy: Strategy | None = None) -> tuple[Trial, dict[str, Value]]:
    """Begin a trial of `strategy`, or of what the sampler proposes, and return it with the strategy.

    Raises:
        SpaceExhausted: the sampler has nothing left; no trial was begun.
        WrongInput: `strategy` has a value that is not there.
        MachineError: the database stayed locked.
    """
    params = None if strategy is None else encode(strategy, handle.target)
    if params is None:
        handle.sampler.rest()
    trial = handle.storage.retry(lambda: _ask_once(handle, params))
    asked = decode(trial.params, handle.target)
    handle.in_flight.add(trial.number)
    handle.known.add(fingerprint(asked))
    return trial, asked


def _ask_once(handle: StudyHandle, params: Params | None) -> Trial:
    sampler, trial = handle.sampler, None
    sampler.force(params)
    try:
        found = handle.study.ask(distributions(handle.target))
        while not sampler.made(found.params):
            # Another program (the dashboard) put it in the queue, legal or not.
            fail(handle, found)
            found = handle.study.ask(distributions(handle.target))
        trial = found
        return trial
    finally:
        sampler.force(None)
        if trial is None:
            # Optuna leaves it running for ever, and samplers keep away from its neighbourhood.
            _fail_orphans(handle)


def _fail_orphans(handle: StudyHandle) -> None:
    for trial in handle.trials(TrialState.RUNNING):
        if trial.number not in handle.in_flight:
            fail(handle, trial)


def fail(handle: StudyHandle, trial: Trial | FrozenTrial) -> None:
    """End a trial that is running or waiting, and that nobody runs."""
    rdb = handle.storage.optuna
    handle.storage.retry(lambda: rdb.set_trial_state_values(trial._trial_id, TrialState.FAIL))


def abandon(handle: StudyHandle, trial: Trial, cut_off: str = "") -> None:
    """End a trial of ours that was asked and will not be told: nothing was launched, or nothing was learned.

    Args:
        cut_off: why, where it counts as interrupted: the next search asks for its strategy again.
    """
    rdb = handle.storage.optuna
    if cut_off:
        for name, value in {OUTCOME: Outcome.INTERRUPTED.value, DETAIL: cut_off}.items():
            handle.storage.retry(partial(trial.set_user_attr, name, value))
    handle.storage.retry(lambda: rdb.set_trial_state_values(trial._trial_id, TrialState.FAIL))
    handle.in_flight.discard(trial.number)


def tell(handle: StudyHandle, trial: Trial | FrozenTrial, record: TrialRecord) -> None:
    """Tell Optuna what came of `trial`; the record has been written before.

    Nothing happens where it was told already. Cut off in the middle, it can be told again.

    Raises:
        MachineError: the database stayed locked; the next start tells it from the record.
    """
    number, again = trial.number, handle.storage.retry
    open_trial = again(lambda: Trial(handle.study, trial._trial_id))
    frozen = again(lambda: handle.storage.optuna.get_trial(trial._trial_id))
    if not frozen.state.is_finished():
        for name, value in attributes_of(record).items():
            again(partial(open_trial.set_user_attr, name, value))
        for name, value in constraints_of(record, handle.limit_bytes).items():
            if name not in frozen.constraints:
                again(partial(open_trial.set_constraint, name, value))
        state, speed = state_of(record), value_of(record)
        again(lambda: handle.study.tell(number, speed, state=state, skip_if_finished=True))
    handle.in_flight.discard(number)
    if record.outcome in (Outcome.DEVICE_NOT_CLEAN, Outcome.INTERRUPTED):
        # Nothing was learned of the strategy, so it may be proposed again.
        handle.known.discard(record.fingerprint)
