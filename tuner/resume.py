"""What a study takes over from before: records that decide in it, and trials that a dead process left."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Mapping

from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from strategies.knob import Value
from tuner.encoding import decode, distributions, encode
from tuner.errors import MachineError, WrongInput
from tuner.kinds import Phase
from tuner.outcome import Outcome
from tuner.record import TrialRecord, confirmed_crashes, decides
from tuner.records import Records
from tuner.space import canonical, fingerprint
from tuner.study import StudyHandle, fail, tell
from tuner.told import DETAIL, FINGERPRINT, OUTCOME, attributes_of, constraints_of, state_of, value_of

Recover = Callable[[int], TrialRecord | None]
"""Of a trial's number: its record, made from what its worker left on the disk; None: it left nothing."""
_LEFT = "the process that ran it is gone"


def seed_from_records(
    handle: StudyHandle, records: Iterable[TrialRecord], *, cap_bytes: int | None, deadlines: Mapping[Phase, float]
) -> int:
    """Add the records that decide in the study as finished trials, and know their strategies; return how many are new.

    Args:
        records: of the study's key, in the order in which they were written.
        cap_bytes: of the study now; None on a CPU.
        deadlines: seconds by phase, now.
    """
    done = _fingerprints(handle.trials(TrialState.COMPLETE, TrialState.PRUNED))
    added = 0
    for record in _deciding(records, handle.limit_bytes, cap_bytes, deadlines):
        frozen = _as_trial(handle, record)
        if frozen is None:
            continue
        handle.known.add(record.fingerprint)
        if record.fingerprint not in done:
            handle.storage.retry(lambda t=frozen: handle.study.add_trial(t))  # type: ignore[misc]
            added += 1
    return added


def _deciding(
    records: Iterable[TrialRecord], limit_bytes: int, cap_bytes: int | None, deadlines: Mapping[Phase, float]
) -> list[TrialRecord]:
    """Return one record for each strategy that is decided: the latest proof, else the latest launch."""
    found: dict[str, TrialRecord] = {}
    known = list(records)
    crashes = confirmed_crashes(known)
    for record in known:
        decided = decides(record, limit_bytes=limit_bytes, cap_bytes=cap_bytes, deadlines=deadlines)
        if decided or record.uuid in crashes:
            before = found.get(record.fingerprint)
            if before is None or before.role != "proof" or record.role == "proof":
                found[record.fingerprint] = record
    return list(found.values())


def _as_trial(handle: StudyHandle, record: TrialRecord) -> FrozenTrial | None:
    try:
        strategy = canonical(record.strategy)
        params = encode(strategy, handle.target)
    except WrongInput:
        # A knob or value that is no longer there: the record stays, and decides nothing here.
        return None
    if fingerprint(strategy) != record.fingerprint:
        return None
    return create_trial(
        state=state_of(record),
        value=value_of(record),
        params=params,
        distributions=distributions(handle.target),
        user_attrs=attributes_of(record),
        constraints=constraints_of(record, handle.limit_bytes),
    )


def sweep(handle: StudyHandle, records: Records, recover: Recover | None = None) -> list[dict[str, Value]]:
    """End the trials that a dead process left, and return the strategies that are to be asked again.

    A trial with a record is told it; one whose worker left a result gets its record from
    `recover`; the others are interrupted. Strategies that were interrupted last, in an orderly
    way too, are returned in the order of their trials. Comes before `seed_from_records`, which may
    make some of them known.

    Raises:
        MachineError: another live process runs the study.
    """
    name = handle.study.study_name
    _check_lease(records, name)
    launched = {r.number: r for r in records.for_study(name) if r.number is not None}
    for trial in handle.trials(TrialState.RUNNING, TrialState.WAITING):
        if trial.number not in handle.in_flight:
            _sweep_one(handle, records, trial, launched.get(trial.number), recover)
    return _interrupted(handle)


def _check_lease(records: Records, study: str) -> None:
    held = records.lease_holder(study)
    if held is not None and (held.host, held.pid) != (socket.gethostname(), os.getpid()):
        raise MachineError(f"study {study!r} is being searched by process {held.pid} on {held.host}")


def _sweep_one(
    handle: StudyHandle, records: Records, trial: FrozenTrial, record: TrialRecord | None, recover: Recover | None
) -> None:
    if trial.state is TrialState.WAITING:
        fail(handle, trial)
        return
    if record is None and recover is not None and (record := recover(trial.number)) is not None:
        records.add(record)
    if record is not None:
        tell(handle, trial, record)
        return
    for name, value in {OUTCOME: Outcome.INTERRUPTED.value, DETAIL: _LEFT}.items():
        handle.storage.retry(lambda n=name, v=value: Trial(handle.study, trial._trial_id).set_user_attr(n, v))  # type: ignore[misc]
    fail(handle, trial)


def _interrupted(handle: StudyHandle) -> list[dict[str, Value]]:
    latest: dict[str, FrozenTrial] = {}
    for trial in handle.trials():
        # A trial that died while it was being asked has only some of its parameters.
        if len(trial.params) == len(distributions(handle.target)):
            latest[fingerprint(decode(trial.params, handle.target))] = trial
    left = [t for t in latest.values() if t.user_attrs.get(OUTCOME) == Outcome.INTERRUPTED.value]
    return [decode(t.params, handle.target) for t in sorted(left, key=lambda t: t.number)]


def _fingerprints(trials: Iterable[FrozenTrial]) -> set[str]:
    return {str(trial.user_attrs[FINGERPRINT]) for trial in trials if FINGERPRINT in trial.user_attrs}
