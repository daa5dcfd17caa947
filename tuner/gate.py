"""Between what is chosen and its launch: the twin tests that it needs come first, and may forbid it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from strategies.knob import Strategy
from tuner import study as studies
from tuner.kinds import Kind
from tuner.ledger import Ledger
from tuner.listener import Listener
from tuner.outcome import Outcome
from tuner.proposals import Proposal
from tuner.record import TrialRecord
from tuner.requests import Requests
from tuner.space import describe, fingerprint
from tuner.study import StudyHandle
from tuner.twins import Twins

Choose = Callable[[bool], Proposal | None]
"""From whether trials are in flight to what is launched next (`Chooser`)."""


class Gate:
    """Holds a proposal back until its tests are decided.

    Args:
        refuse: is told the record of a strategy that a test forbids, and its Optuna trial: it was never launched.
        fits: is there time for the strategy and the tests that are open?
        no_time: says that there is none for a proposal.
    """

    def __init__(
        self,
        *,
        handle: StudyHandle,
        ledger: Ledger,
        requests: Requests,
        twins: Twins,
        listener: Listener,
        refuse: Callable[[TrialRecord, Any], None],
        fits: Callable[[Strategy], bool],
        no_time: Callable[[Proposal], str],
    ) -> None:
        self.handle, self.ledger, self.requests, self.twins = handle, ledger, requests, twins
        self.listener, self.refuse, self.fits, self.no_time = listener, refuse, fits, no_time
        self.dropped = False
        """`next` returned nothing as it dropped one: others may follow."""
        self._waiting: Proposal | None = None
        self._testing = False

    def next(self, choose: Choose, busy: bool) -> Proposal | None:
        """Return what is launched next; None: nothing now, or, where `dropped` says so, one was let go."""
        self.dropped = False
        if self._testing:
            return None
        waited = self._waiting is not None
        found, self._waiting = self._waiting or choose(busy), None
        if found is None:
            return None
        test = self._open_test(found)
        if test is None and (finding := self._forbids(found)) is not None:
            self._refuse(found, finding)
        elif found.role == "search" and (waited or test is not None) and not self.fits(found.strategy):
            self.listener.message(self.no_time(found))
            self.drop(found, "its twin test took the time" if waited else "")
        elif test is not None:
            self._waiting, self._testing = found, True
            return test
        else:
            return found
        self.dropped = True
        return None

    def tested(self, record: TrialRecord) -> None:
        """Take the record of a test that has ended."""
        self.twins.add(record)
        self._testing = False
        if record.outcome is Outcome.INTERRUPTED:
            # The time is up, or somebody stopped it: what waits for it is not launched now.
            self.abandon()

    def abandon(self) -> None:
        """Drop what waits, to be asked again by the next search: this one is stopped, or ends with an error."""
        if self._waiting is not None:
            self.drop(self._waiting, "the search ended while its twin test ran")
            self._waiting = None

    def drop(self, proposal: Proposal, cut_off: str = "") -> None:
        """End the Optuna trial of a proposal that is not launched.

        Args:
            cut_off: why it was not, where the next search is to ask for it again.
        """
        if proposal.trial is not None:
            studies.abandon(self.handle, proposal.trial, cut_off)
        self.handle.left_out.add(fingerprint(proposal.strategy))

    def _tests(self, found: Proposal) -> list[Proposal]:
        tests = [self.twins.recomputed(found.strategy)]
        if found.role == "proof" and not self.ledger.can_compare(self.requests.seed):
            tests.append(self.twins.against_eager(found.strategy))
        return [test for test in tests if test is not None]

    def _open_test(self, found: Proposal) -> Proposal | None:
        tests = (test for test in self._tests(found) if self.twins.finding(test) is None)
        test = next(tests, None)
        return None if test is None else replace(test, of_proof=found.role == "proof")

    def _forbids(self, found: Proposal) -> TrialRecord | None:
        """Return the record of a test that forbids a strategy; None: they allow it."""
        findings = [self.twins.finding(test) for test in self._tests(found)]
        return next((f for f in findings if f is not None and self.twins.refusal(found.strategy, f)), None)

    def _refuse(self, found: Proposal, finding: TrialRecord) -> None:
        refusal = self.twins.refusal(found.strategy, finding)
        assert refusal is not None
        others = self._share_test(found)
        if refusal[0] is Outcome.WRONG_RESULT:
            self._keep_refused(found, finding, refusal)
            self._tell_others("not launched either, sharing its test", others)
        else:
            # Nothing was found of the strategy, so nothing is kept of it: another search may test it.
            self.listener.message(f"left out of this search: {describe(found.strategy)}, as {refusal[2]}")
            self.drop(found)
            self._tell_others("left out too, sharing its test", others)
            self.handle.left_out.update(others)
        self.handle.known.update(others)

    def _share_test(self, found: Proposal) -> set[str]:
        alike = self.twins.alike(found.strategy, self.handle.sampler.space)
        return alike - self.handle.known - {fingerprint(found.strategy)}

    def _tell_others(self, what: str, others: set[str]) -> None:
        if others:
            strategies = "1 more strategy is" if len(others) == 1 else f"{len(others)} more strategies are"
            self.listener.message(f"{strategies} {what}")

    def _keep_refused(self, found: Proposal, finding: TrialRecord, refusal: tuple[Outcome, Kind | None, str]) -> None:
        outcome, kind, detail = refusal
        # A proof that a test forbids is no trial: its strategy has had one.
        trial = found.trial if found.role == "proof" else found.trial or studies.ask(self.handle, found.strategy)[0]
        requests, strategy = self.requests, found.strategy
        record = TrialRecord(
            uuid=uuid.uuid4().hex,
            key=requests.key,
            study=requests.study,
            number=None if trial is None else trial.number,
            role="search" if found.role == "proof" else found.role,
            source=found.source,
            strategy=strategy,
            fingerprint=fingerprint(strategy),
            outcome=outcome,
            kind=kind,
            detail=detail,
            budget_bytes=requests.limits.budget_bytes,
            limit_bytes=requests.limits.limit_bytes,
            cap_bytes=requests.cap_bytes(strategy),
            deadlines=requests.deadlines,
            seed=requests.seed,
            twin_uuid=finding.uuid,
            started_at=time.time(),
            seconds=0.0,
        )
        self.refuse(record, trial)
