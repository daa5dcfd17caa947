"""A result that reached its file is never lost: the record of a trial whose parent died."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import ValidationError

from tuner.ledger import Ledger
from tuner.outcome import Outcome, classify, user_error
from tuner.protocol import Attempt, TrialRequest, TrialResult
from tuner.record import TrialRecord
from tuner.requests import Requests
from tuner.space import fingerprint
from tuner.trial_dir import TrialDir

SOURCE = "recovered"


def recover(number: int, requests: Requests, ledger: Ledger) -> TrialRecord | None:
    """Return the record of trial `number`, made from what its worker left; None: it left none that says enough.

    The parent's own samples of the device died with it; the worker's figures stand alone, less the
    base line that the request has.
    """
    folder = _latest(requests.root / requests.study, str(number))
    request = None if folder is None else _request(folder)
    if folder is None or request is None or request.workload != requests.workload:
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
    verdict = classify(attempt, reference=ledger.reference(request.seed, fingerprint(request.strategy)))
    if verdict.outcome is Outcome.CRASH or user_error(attempt) is not None:
        # Without the parent's samples and the exit status nothing is known of it: it is asked again.
        return None
    return requests.record(attempt, verdict, role="search", source=SOURCE, number=number)


def _request(folder: TrialDir) -> TrialRequest | None:
    try:
        return folder.read_request()
    except (FileNotFoundError, ValidationError):  # not written yet, or by another version
        return None


def _latest(study: Path, name: str) -> TrialDir | None:
    """Return the last folder of a trial: a name that was taken got a suffix."""
    found = [p for p in study.glob(f"{name}*") if re.fullmatch(rf"{name}(\.\d+)?", p.name)]
    return TrialDir(max(found, key=lambda p: p.stat().st_mtime)) if found else None
