"""A result that reached its file is never lost: the record of a trial whose parent died."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import cast, get_args

from pydantic import ValidationError

from strategies.knob import Strategy
from tuner.kinds import FailureClass
from tuner.ledger import Ledger
from tuner.outcome import Outcome, classify, classify_twin, user_error
from tuner.protocol import Attempt, TrialRequest, TrialResult
from tuner.record import Role, TrialRecord
from tuner.requests import Requests
from tuner.space import fingerprint
from tuner.trial_dir import TrialDir
from tuner.twins import Twins

SOURCE = "recovered"
NOTHING_LEARNED = frozenset({FailureClass.USER_CODE, FailureClass.ENVIRONMENT, FailureClass.OTHER})
"""Of the strategy; it is asked again."""
WITHOUT_TRIAL = frozenset({"proof", "run"})
"""Roles of launches that are no trials of Optuna's: no sweep finds them."""
OnSlice = Callable[[Strategy], bool]
"""Were loss and gradient of a strategy compared on a slice, and are right (`Twins.checked_on_slice`)?"""


def recover(number: int, requests: Requests, ledger: Ledger, on_slice: OnSlice) -> TrialRecord | None:
    """Return the record of trial `number`, made from what its worker left; None: it left none that says enough.

    The parent's own samples of the device died with it; the worker's figures stand alone, less the
    base line that the request has.
    """
    folder = _latest(requests.root / requests.study, str(number))
    request = None if folder is None else _request(folder)
    return None if folder is None or request is None else _record(folder, request, requests, ledger, number, on_slice)


def left_over(requests: Requests, ledger: Ledger, since: float, on_slice: OnSlice) -> list[TrialRecord]:
    """Return the records of proofs and runs that ended as their parent died: they are no trials of Optuna's.

    Args:
        since: Unix time at which the study was made: older folders are of an earlier database.
    """
    recorded = {record.uuid for record in ledger.records}
    found = []
    for folder, request in _launched(requests, WITHOUT_TRIAL, since):
        if request.trial_uuid not in recorded:
            record = _record(folder, request, requests, ledger, None, on_slice)
            found += [record] if record is not None else []
    return found


def left_over_tests(requests: Requests, twins: Twins, since: float) -> list[TrialRecord]:
    """Return the records of the twin tests that ended as their parent died; they come before all else that is left.

    Args:
        since: Unix time at which the study was made: older folders are of an earlier database.
    """
    found = []
    for folder, request in _launched(requests, frozenset({"twin"}), since):
        test = twins.test_as(request)
        if test is None or twins.has(twins.key(test), request.trial_uuid):
            continue
        attempt = _attempt(folder, request)
        if attempt is None or user_error(attempt) is not None:
            continue
        verdict = classify_twin(attempt)
        if verdict.outcome is not Outcome.CRASH:
            # The source says which of the two tests it is, so it stays.
            found.append(
                requests.record(attempt, verdict, role="twin", source=test.source, number=None, key=twins.key(test))
            )
    return found


def _launched(requests: Requests, roles: Collection[str], since: float) -> Iterator[tuple[TrialDir, TrialRequest]]:
    """Yield folder and request of each launch of these roles, in their order."""
    for path in sorted((requests.root / requests.study).glob("*/request.json"), key=lambda p: p.stat().st_mtime):
        folder = TrialDir(path.parent)
        request = _request(folder)
        if request is not None and request.role in roles and path.stat().st_mtime >= since:
            yield folder, request


def is_unrecorded(folder: Path, recorded: Collection[str]) -> bool:
    """Has a folder a result that says something, and that no record was made of (yet)?

    Args:
        recorded: the uuids of the records that there are.
    """
    result = TrialDir(folder).read_result()
    if not isinstance(result, TrialResult) or result.trial_uuid in recorded:
        return False
    if result.failure is None:
        return result.throughput is not None or result.twin_parity is not None
    return result.failure.failure_class not in NOTHING_LEARNED


def _attempt(folder: TrialDir, request: TrialRequest) -> Attempt | None:
    result = folder.read_result(request.trial_uuid)
    if not isinstance(result, TrialResult):
        return None
    events = folder.read_events().events
    started = events[0].time if events else folder.request_path.stat().st_mtime
    return Attempt(
        request=request,
        exit_code=0,
        result=result,
        events=events,
        tail=folder.tail(),
        started_at=started,
        seconds=folder.result_path.stat().st_mtime - started,
    )


def _record(
    folder: TrialDir,
    request: TrialRequest,
    requests: Requests,
    ledger: Ledger,
    number: int | None,
    on_slice: OnSlice,
) -> TrialRecord | None:
    if request.workload != requests.workload or request.role not in get_args(Role) or request.role == "twin":
        return None
    attempt = _attempt(folder, request)
    if attempt is None:
        return None
    reference = ledger.reference(request.seed, fingerprint(request.strategy))
    tolerance = ledger.tolerance(request.seed, request.strategy)
    right = on_slice(request.strategy)
    verdict = classify(attempt, reference=reference, tolerance=tolerance, on_slice=right)
    if verdict.outcome is Outcome.CRASH or user_error(attempt) is not None:
        # Without the parent's samples and the exit status nothing is known of it: it is asked again.
        return None
    return requests.record(attempt, verdict, role=cast(Role, request.role), source=SOURCE, number=number)


def _request(folder: TrialDir) -> TrialRequest | None:
    try:
        return folder.read_request()
    except (FileNotFoundError, ValidationError):  # not written yet, or by another version
        return None


def _latest(study: Path, name: str) -> TrialDir | None:
    """Return the last folder of a trial: a name that was taken got a suffix."""
    found = [p for p in study.glob(f"{name}*") if re.fullmatch(rf"{name}(\.\d+)?", p.name)]
    return TrialDir(max(found, key=lambda p: p.stat().st_mtime)) if found else None
