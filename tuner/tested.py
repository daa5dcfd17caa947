"""Before a single run: the twin test that its strategy needs under dropout, where none was made here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from strategies.knob import Severity, Strategy
from tuner.errors import Interrupted, MachineError, WrongInput
from tuner.listener import Listener
from tuner.machine_fault import machine_fault
from tuner.outcome import Outcome, classify_twin
from tuner.proposals import Proposal
from tuner.protocol import Attempt, TrialRequest
from tuner.record import TrialRecord
from tuner.requests import Requests
from tuner.space import conflict_of, describe
from tuner.trial_dir import TrialDir
from tuner.twins import AT_MOST, Twins
from tuner.units import format_duration

Measure = Callable[[TrialRequest, TrialDir], Attempt]
"""Launches a request and waits for its end."""


def require_tested(
    strategy: Strategy,
    twins: Twins,
    requests: Requests,
    measure: Measure,
    keep: Callable[[TrialRecord], None],
    listener: Listener,
) -> None:
    """Launch the twin test of `strategy` where it is open, and refuse what it finds wrong.

    A test that says nothing is launched `AT_MOST` times; what is known to be wrong without one is refused then.

    Args:
        keep: writes the record of a test.

    Raises:
        WrongInput: the strategy trains another step under dropout.
        MachineError: the machine cannot do it, or is not clean.
        Interrupted: a signal came.
    """
    test = twins.recomputed(strategy)
    if test is None:
        return
    for _ in range(AT_MOST):
        if twins.finding(test) is not None:
            break
        _announce(test, twins, listener)
        record = _launched(test, twins, requests, measure)
        keep(record)
        twins.add(record)
        listener.message(f"twin test: {record.outcome}" + (f", {record.detail}" if record.detail else ""))
        _require_an_end(record)
    _refuse(strategy, twins, twins.finding(test))
    if (doubt := twins.untested(strategy)) is not None:
        listener.message(doubt)


def _announce(test: Proposal, twins: Twins, listener: Listener) -> None:
    seconds = format_duration(twins.open_seconds(test))
    listener.message(f"there is dropout, and what recomputes is compared first: a twin test of about {seconds}")
    listener.trial_started("twin", test.strategy, test.source)


def _launched(test: Proposal, twins: Twins, requests: Requests, measure: Measure) -> TrialRecord:
    """Return the record of one launch of a test.

    Raises:
        MachineError: the machine is missing something.
    """
    folder = requests.folder("twin")
    request = requests.make(test.strategy, folder, role="twin", workload=test.workload, twin=test.twin)
    attempt = measure(request, folder)
    if (fault := machine_fault(attempt)) is not None:
        raise MachineError(fault)
    verdict, key = classify_twin(attempt), twins.key(test)
    return requests.record(attempt, verdict, role="twin", source=test.source, number=None, key=key)


def _require_an_end(record: TrialRecord) -> None:
    if record.outcome is Outcome.INTERRUPTED:
        raise Interrupted("interrupted: the twin test was not made to its end, and the strategy not measured")
    if record.outcome is Outcome.DEVICE_NOT_CLEAN:
        raise MachineError(record.detail)


def _refuse(strategy: Strategy, twins: Twins, finding: TrialRecord | None) -> None:
    if finding is not None:
        refusal = twins.refusal(strategy, finding)
        reason = None if refusal is None else refusal[2]
    else:
        conflict = conflict_of(strategy, replace(twins.target, untested_dropout=True))
        reason = conflict.reason if conflict is not None and conflict.severity is Severity.IMPOSSIBLE else None
    if reason is not None:
        raise WrongInput("strategy", f"cannot work here: {reason}", describe(strategy))
