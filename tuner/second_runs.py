"""Which strategies that died of memory a second run may decide otherwise, and which of them could still win."""

from __future__ import annotations

from collections.abc import Collection

from strategies.knob import COMPILE_OFF
from tuner.ledger import Ledger
from tuner.outcome import Outcome
from tuner.record import TrialRecord, worth_another
from tuner.requests import Requests
from tuner.timing import mode_class

FAR_AHEAD = 1.3
"""So many times the best eager strategy: no other eager one catches up with a compiled best."""
_BY_SPEED = ("eager", "compiled", "graphs")
"""Kinds of mode, the slowest first."""


def second_runs(ledger: Ledger, requests: Requests, allowed: Collection[str]) -> list[TrialRecord]:
    """Return what a second run may decide otherwise, the compiled ones first.

    None that is eager where a compiled one has left the best eager far behind: a second run of an
    eager strategy that hardly fits does not make up for that, and costs a trial's time.

    Args:
        allowed: fingerprints of what may be proposed now.
    """
    eager_has_lost = _eager_has_lost(ledger)
    found = []
    for record in ledger.all_standing():
        if record.fingerprint not in allowed or (_is_eager(record) and eager_has_lost):
            continue
        cap_bytes = requests.cap_bytes(record.strategy)
        if worth_another(record, limit_bytes=ledger.study.limit_bytes, cap_bytes=cap_bytes):
            found.append(record)
    return sorted(found, key=_is_eager)


def could_win(record: TrialRecord, leader: TrialRecord | None) -> bool:
    """Is its kind of mode as fast as the best's, or faster? For such a one time is kept."""
    if leader is None:
        return True
    return _BY_SPEED.index(mode_class(record.strategy)) >= _BY_SPEED.index(mode_class(leader.strategy))


def _eager_has_lost(ledger: Ledger) -> bool:
    """Is the best compiled, and `FAR_AHEAD` of the best eager?"""
    leader = ledger.best()
    if leader is None or _is_eager(leader):
        return False
    rate = ledger.ranking.rate
    eager = [rate(r) for r in ledger.all_standing() if r.outcome is Outcome.OK and _is_eager(r)]
    return bool(eager) and rate(leader) >= FAR_AHEAD * max(eager)


def _is_eager(record: TrialRecord) -> bool:
    return record.strategy["mode"] == COMPILE_OFF
