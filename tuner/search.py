"""The search: ask, submit, classify, record, tell. Knows no terminal; tells a listener."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tuner import study as studies
from tuner.chooser import TIME_IS_UP, Chooser
from tuner.errors import ExitCode, Interrupted, MachineError, WrongInput
from tuner.executor import Executor, Handle
from tuner.gate import Gate
from tuner.kinds import Phase
from tuner.ledger import Ledger
from tuner.listener import Listener
from tuner.machine_fault import machine_fault
from tuner.outcome import Outcome, Verdict, classify, classify_twin, user_error
from tuner.proposals import Proposal
from tuner.protocol import Attempt
from tuner.record import TrialRecord
from tuner.records import Records
from tuner.requests import Requests
from tuner.space import fingerprint
from tuner.study import StudyHandle
from tuner.twins import Twins
from tuner.verdict import verdict

POLL_SECONDS = 0.05
NOT_CLEAN_AT_MOST = 3
"""Trials in a row that a device which is not clean may cost before the study stops."""
BEAT_SECONDS = 60.0
"""Between two signs of life to those who would take the study over."""
WITHOUT_TRIAL = frozenset({"proof", "twin"})
"""Roles of launches that are no trials of Optuna's, and not counted as such."""
STOP_SECONDS = 30.0
"""How long a stopped search waits for its running trial to be gone."""


@dataclass(frozen=True, slots=True)
class SearchEnd:
    """How a search ended."""

    reason: str
    exit_code: ExitCode


@dataclass(slots=True)
class _InFlight:
    proposal: Proposal
    trial: Any
    """The Optuna trial; None for a proof."""
    phase: Phase | None = None


class Search:
    """One invocation on an open study. The caller holds the lease and the executor.

    Args:
        stopped: has the user, or the system, asked for the end?
        beat: gives a sign of life of the lease.
    """

    def __init__(
        self,
        *,
        handle: StudyHandle,
        records: Records,
        ledger: Ledger,
        executor: Executor,
        requests: Requests,
        chooser: Chooser,
        twins: Twins,
        listener: Listener,
        stopped: Callable[[], bool],
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self.handle, self.records, self.ledger, self.executor = handle, records, ledger, executor
        self.requests, self.chooser, self.listener, self.stopped = requests, chooser, listener, stopped
        self.twins = twins
        self.gate = Gate(
            handle=handle, ledger=ledger, requests=requests, twins=twins, listener=listener,
            refuse=self._refuse, fits=chooser.fits, no_time=chooser.no_time,
        )  # fmt: skip
        self._in_flight: dict[Handle, _InFlight] = {}
        self._not_clean = 0
        self._beat, self._beat_at = beat, time.monotonic()
        requests.learn(ledger.records)

    def run(self) -> SearchEnd:
        """Search until time, trials or space are exhausted, then prove the winner.

        Raises:
            Interrupted: a signal came; the running trial was ended and everything is kept.
            MachineError: the device is not clean, again and again, or the database stays locked.
            WrongInput: the user's own code raised.
        """
        self._tell_news()
        self.chooser.end = self.ledger.nothing_fits()
        for choose in (self.chooser.next, self.chooser.undecided, self.chooser.proof):
            self._loop(choose)
        code = verdict(self.ledger.study, self.ledger.records, self.ledger.eager_only)
        return SearchEnd(self.chooser.end or "the search is over", code)

    def _loop(self, choose: Callable[[bool], Proposal | None]) -> None:
        """Launch what `choose` returns, `slots` at a time, until it returns nothing and all have ended."""
        while True:
            if self.stopped():
                self._stop()
            while len(self._in_flight) < self.executor.slots:
                found = self.gate.next(choose, bool(self._in_flight))
                if found is None:
                    break
                self._launch(found)
            if self._in_flight:
                self._wait()
            elif self.gate.dropped:
                self._give_sign()
            else:
                return

    def _launch(self, proposal: Proposal) -> None:
        trial = proposal.trial
        if trial is None and proposal.role not in WITHOUT_TRIAL:
            trial, _ = studies.ask(self.handle, proposal.strategy)
        name = str(trial.number) if trial is not None else proposal.role
        folder = self.requests.folder(name)
        request = self.requests.make(
            proposal.strategy, folder, cold=proposal.role == "proof", role=proposal.role,
            workload=proposal.workload, twin=proposal.twin,
        )  # fmt: skip
        self.listener.trial_started(
            trial.number if trial is not None else proposal.role, proposal.strategy, proposal.source
        )
        self._in_flight[self.executor.submit(request, folder)] = _InFlight(proposal, trial)
        self.chooser.launches += proposal.role not in WITHOUT_TRIAL

    def _wait(self) -> None:
        """Poll until a trial has ended, the time is up, or a signal came."""
        while True:
            ended = self.executor.poll()
            self._tell_phases()
            for attempt in ended:
                self._finish(attempt)
            if ended or self.stopped():
                return
            for handle, flying in self._in_flight.items():
                if self.chooser.must_end("proof" if flying.proposal.of_proof else flying.proposal.role):
                    self.chooser.end = self.chooser.end or TIME_IS_UP
                    self.executor.cancel(handle)
            self._give_sign()
            time.sleep(POLL_SECONDS)

    def _give_sign(self) -> None:
        if time.monotonic() - self._beat_at >= BEAT_SECONDS:
            self._beat()
            self._beat_at = time.monotonic()

    def _tell_phases(self) -> None:
        for handle, phase in self.executor.phases().items():
            flying = self._in_flight.get(handle)
            if flying is not None and flying.phase is not phase:
                flying.phase = phase
                self.listener.phase(phase)

    def _tell_news(self) -> None:
        for sentence in self.ledger.news():
            self.listener.message(sentence)

    def _cancel_all(self) -> None:
        for handle in self._in_flight:
            self.executor.cancel(handle)

    def _stop(self) -> None:
        self._cancel_all()
        deadline = time.monotonic() + STOP_SECONDS
        while self._in_flight and time.monotonic() < deadline:
            for attempt in self.executor.poll():
                self._finish(attempt)
            time.sleep(POLL_SECONDS)
        raise Interrupted("interrupted: everything measured so far is kept, and the same command goes on from here")

    def _finish(self, attempt: Attempt) -> None:
        flying = self._in_flight.pop(attempt.request.trial_uuid)
        fault, problem = machine_fault(attempt), user_error(attempt)
        if flying.proposal.role == "twin":
            problem = None  # it runs the user's functions on a slice, which they may not be made for
        if (fault or problem) is not None:
            self.gate.abandon()
            if flying.trial is not None:
                studies.abandon(self.handle, flying.trial)
        if fault is not None:
            raise MachineError(f"{fault}; that is charged to no strategy, and the same command goes on from here")
        if problem is not None:
            raise WrongInput("the user's code", problem)
        if flying.proposal.role == "twin":
            self._finish_twin(attempt, flying.proposal)
            return
        record = self.requests.record(
            attempt,
            self._classified(attempt),
            role=flying.proposal.role,
            source=flying.proposal.source,
            number=None if flying.trial is None else flying.trial.number,
        )
        record = self.twins.with_doubt(self.ledger.remarked(record))
        self._keep(record, flying.trial)
        self.requests.learn([record])
        self._tell_news()
        self._look(record, flying.proposal)

    def _classified(self, attempt: Attempt) -> Verdict:
        seed, strategy = attempt.request.seed, attempt.request.strategy
        return classify(
            attempt,
            reference=self.ledger.reference(seed, fingerprint(strategy)),
            tolerance=self.ledger.tolerance(seed, strategy),
            on_slice=self.twins.checked_on_slice(strategy),
        )

    def _refuse(self, record: TrialRecord, trial: Any) -> None:
        """Keep the record of a strategy that a twin test forbids: it is known, and was never launched."""
        self._keep(record, trial)
        self.chooser.end = self.chooser.end or self.ledger.nothing_left_to_try()

    def _keep(self, record: TrialRecord, trial: Any) -> None:
        self.records.add(record)
        if trial is not None:
            studies.tell(self.handle, trial, record)
        self.ledger.add(record)
        self.listener.trial_finished(record, self.ledger.best(), self.chooser.seconds_left())

    def _finish_twin(self, attempt: Attempt, proposal: Proposal) -> None:
        record = self.requests.record(
            attempt, classify_twin(attempt), role="twin", source=proposal.source, number=None,
            key=self.twins.key(proposal),
        )  # fmt: skip
        self.records.add(record)
        self.listener.trial_finished(record, self.ledger.best(), self.chooser.seconds_left())
        self.gate.tested(record)
        self._count_not_clean(record)

    def _look(self, record: TrialRecord, proposal: Proposal) -> None:
        """Decide whether, and with what, the search goes on."""
        self._count_not_clean(record)
        if record.outcome is Outcome.CRASH and proposal.role == "search":
            self.chooser.crashed(proposal)
            return
        if proposal.role == "proof" and record.outcome in {Outcome.INTERRUPTED, Outcome.DEVICE_NOT_CLEAN}:
            self.chooser.give_up_proof("the proof was cut off")
        elif record.outcome is Outcome.DEVICE_NOT_CLEAN:
            self.chooser.not_clean(proposal)
        self.chooser.end = self.chooser.end or self.ledger.nothing_left_to_try()

    def _count_not_clean(self, record: TrialRecord) -> None:
        self._not_clean = self._not_clean + 1 if record.outcome is Outcome.DEVICE_NOT_CLEAN else 0
        if self._not_clean >= NOT_CLEAN_AT_MOST:
            raise MachineError(f"the device was not clean {NOT_CLEAN_AT_MOST} times in a row: {record.detail}")
