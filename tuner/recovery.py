"""A result that reached its file is never lost: the record of a trial whose parent died."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import cast, get_args

from pydantic import ValidationError

from tuner.kinds import FailureClass
from tuner.ledger import Ledger
from tuner.outcome import Outcome, classify, user_error
from tuner.protocol import Attempt, TrialRequest, TrialResult
from tuner.record import Role, TrialRecord
from tuner.requests import Requests
from tuner.space import fingerprint
from tuner.trial_dir import TrialDir

SOURCE = "recovered"
NOTHING_LEARNED = frozenset({FailureClass.USER_CODE, FailureClass.ENVIRONMENT, FailureClass.OTHER})
"""Of the strategy; it is asked again."""
WITHOUT_TRIAL = frozenset({"proof", "run"})
"""Roles of launches that are no trials of Optuna's: no sweep finds them."""


def recover(number: int, requests: Requests, ledger: Ledger) -> TrialRecord | None:
    """Return the record of trial `number`, made from what its worker left; None: it left none that says enough.

    The parent's own samples of the device died with it; the worker's figures stand alone, less the
    base line that the request has.
    """
    folder = _latest(requests.root / requests.study, str(number))
    request = None if folder is None else _request(folder)
    return None if folder is None or request is None else _record(folder, request, requests, ledger, number)


def left_over(requests: Requests, ledger: Ledger, since: float) -> list[TrialRecord]:
    """Return the records of proofs and runs that ended as their parent died: they are no trials of Optuna's.

    Args:
        since: Unix time at which the study was made: older folders are of an earlier database.
    """
    recorded = {record.uuid for record in ledger.records}
    found = []
    for path in sorted((requests.root / requests.study).glob("*/request.json"), key=lambda p: p.stat().st_mtime):
        folder = TrialDir(path.parent)
        request = _request(folder)
        if request is None or request.role not in WITHOUT_TRIAL or path.stat().st_mtime < since:
            continue
        record = None if request.trial_uuid in recorded else _record(folder, request, requests, ledger, None)
        found += [record] if record is not None else []
    return found


def is_unrecorded(folder: Path, recorded: Collection[str]) -> bool:
    """Has a folder a result that says something, and that no record was made of (yet)?

    Args:
        recorded: the uuids of the records that there are.
    """
    result = TrialDir(folder).read_result()
    if not isinstance(result, TrialResult) or result.trial_uuid in recorded:
        return False
    if result.failure is None:
        return result.throughput is not None
    return result.failure.failure_class not in NOTHING_LEARNED


def _record(
    folder: TrialDir, request: TrialRequest, requests: Requests, ledger: Ledger, number: int | None
) -> TrialRecord | None:
    if request.workload != requests.workload or request.role not in get_args(Role):
        return None
    result = folder.read_result(request.trial_uuid)
    if not isinstance(result, TrialResult):
        return None
    events = folder.read_events().events
    started = events[0].time if events else folder.request_path.stat().st_mtime
    attempt = Attempt(
        request=request,
        exit_code=0,
        result=result,
        events=events,
        tail=folder.tail(),
        started_at=started,
        seconds=folder.result_path.stat().st_mtime - started,
    )
    reference = ledger.reference(request.seed, fingerprint(request.strategy))
    tolerance = ledger.tolerance(request.seed, request.strategy)
    verdict = classify(attempt, reference=reference, tolerance=tolerance)
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
