"""A result that reached its file is never lost: the record of a trial whose parent died."""

from __future__ import annotations

import re
from pathlib import Path

from tuner.ledger import Ledger
from tuner.outcome import classify
from tuner.protocol import Attempt, TrialResult
from tuner.record import TrialRecord
from tuner.requests import Requests
from tuner.space import fingerprint
from tuner.trial_dir import TrialDir

SOURCE = "recovered"


def recover(number: int, requests: Requests, ledger: Ledger) -> TrialRecord | None:
    """Return the record of trial `number`, made from what its worker left; None: it left no whole result.

    The parent's own samples of the device died with it; the worker's figures stand alone.
    """
    folder = _latest(requests.root / requests.study, str(number))
    if folder is None or not folder.result_path.exists() or not folder.request_path.exists():
        return None
    request, result = folder.read_request(), folder.read_result()
    if not isinstance(result, TrialResult) or result.trial_uuid != request.trial_uuid or result.throughput is None:
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
    return requests.record(attempt, verdict, role="search", source=SOURCE, number=number)


def _latest(study: Path, name: str) -> TrialDir | None:
    """Return the last folder of a trial: a name that was taken got a suffix."""
    found = [p for p in study.glob(f"{name}*") if re.fullmatch(rf"{name}(\.\d+)?", p.name)]
    return TrialDir(max(found, key=lambda p: p.stat().st_mtime)) if found else None
