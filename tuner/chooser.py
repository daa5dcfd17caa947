"""What a search launches next, within its time: the opening, the sampler, second runs, the proof."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

from strategies.knob import Strategy, Value
from tuner import study as studies
from tuner.ledger import Ledger
from tuner.listener import Listener
from tuner.outcome import Outcome
from tuner.proposals import Opening, Proposal
from tuner.record import Role, TrialRecord
from tuner.requests import Requests
from tuner.second_runs import could_win, second_runs
from tuner.space import describe, fingerprint
from tuner.study import SpaceExhausted, StudyHandle
from tuner.timing import group
from tuner.twins import Twins
from tuner.units import format_duration

TIME_IS_UP = "the time budget is used up"
TOO_SHORT = "the rest of the time budget is too short for another trial"
KILL_SECONDS = 5.0
"""What it takes to end a trial, and all that it started, before a proof can begin."""
PROOFS_AT_MOST = 2
"""Of one strategy in one search: a proof that crashed is tried once more."""
COLD = 1.1
"""A proof against the longest run of its strategy so far."""


class Chooser:
    """Decides what is next, and says why nothing is.

    Args:
        ends_at: Unix time at which everything, the proof included, is over.
        trials: launches at most, proofs not counted; None: no bound.
        again: strategies that were interrupted; those that the filters leave are launched first.
    """

    def __init__(
        self,
        *,
        handle: StudyHandle,
        ledger: Ledger,
        requests: Requests,
        twins: Twins,
        listener: Listener,
        ends_at: float,
        trials: int | None,
        sampler: str,
        again: list[dict[str, Value]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.handle, self.ledger, self.requests, self.listener = handle, ledger, requests, listener
        self.twins = twins
        self.ends_at, self.trials, self.sampler, self.clock = ends_at, trials, sampler, clock
        self.launches = 0
        self.end: str | None = None
        """Why nothing more is launched."""
        self._again = [Proposal(s, self._source(s)) for s in again if s in handle.sampler.space]
        adapter = ledger.study.workload.adapter
        self._opening: Opening | None = Opening(handle.sampler.space, adapter, ledger.standing, requests.seed)
        self._retried: set[str] = set()
        self._undecided: tuple[tuple[int, dict[str, int]], list[TrialRecord]] | None = None
        """What a second run may decide otherwise, with the count of records and the figures that it follows from."""
        self._proofs: Counter[str] = Counter()
        """Proofs asked for, by fingerprint."""
        self._proof_given_up = False

    def _source(self, strategy: dict[str, Value]) -> str:
        before = self.ledger.launches(fingerprint(strategy))
        return before[-1].source if before else "resumed"

    def crashed(self, proposal: Proposal) -> None:
        """Try a strategy once more at once."""
        self._again.insert(0, Proposal(proposal.strategy, proposal.source, proposal.is_reference, "retry"))

    def not_clean(self, proposal: Proposal) -> None:
        """Ask for a strategy again that the device, not itself, has cost its launch."""
        self.launches -= 1
        print_ = fingerprint(proposal.strategy)
        if proposal.role == "retry" and print_ in self._retried:
            # Its first run stands, so `next` would leave it out; it comes again as a second run does.
            self._retried.discard(print_)
        else:
            self._again.insert(0, replace(proposal, trial=None))

    def seconds_left(self) -> float:
        """Return what is left of the time budget."""
        return max(0.0, self.ends_at - self.clock())

    def next(self, busy: bool) -> Proposal | None:
        """Return what is launched next; None: nothing now, and nothing any more where `end` says why.

        `busy`: other trials are in flight. The opening looks at each outcome before it goes on.
        """
        if self.trials is not None and self.launches >= self.trials and not self._retries():
            self.end = self.end or f"all {self.trials} trials were launched"
        if self.end is not None:
            return None
        while self._again:
            proposal = self._again.pop(0)
            if self.ledger.standing(proposal.strategy) is None and self._fits_in_time(proposal.strategy):
                return proposal
        while self._opening is not None:
            if busy:
                return None
            found = self._opening.next()
            if found is None:
                self._opening = None
            elif self._fits_in_time(found.strategy) or (found.is_reference and not self.ledger.records):
                # Before the first record nothing is known of how long a trial takes here.
                return found
            else:
                self.listener.message(self.no_time(found))
        return self._sampled(busy)

    def _retries(self) -> bool:
        return any(proposal.role == "retry" for proposal in self._again)

    def _sampled(self, busy: bool) -> Proposal | None:
        if self.must_end("search"):
            self.end = TIME_IS_UP if self.seconds_left() <= KILL_SECONDS else TOO_SHORT
            return None
        if not busy and (again := self._last_chance()) is not None:
            return again
        too_long = self._too_long() - self.handle.known
        self.handle.known.update(too_long)
        try:
            trial, strategy = studies.ask(self.handle)
        except SpaceExhausted:
            self.end = TOO_SHORT if too_long else self._known()
            return None
        finally:
            self.handle.known.difference_update(too_long)
        return Proposal(strategy, f"sampler: {self.sampler}", trial=trial)

    def _known(self) -> str:
        space = self.handle.sampler.space
        left_out = len(self.handle.left_out & space.index.keys())
        but = f", but for {left_out} that were left out" if left_out else ""
        return f"all {len(space)} strategies of the space are known{but}"

    def _too_long(self) -> set[str]:
        """Return the fingerprints for which the time does not suffice any more: others may still end."""
        groups = [members for example, members in self._groups.values() if not self._fits_in_time(example)]
        return {member for members in groups for member in members}

    @cached_property
    def _groups(self) -> dict[tuple[str, ...], tuple[dict[str, Value], list[str]]]:
        """Strategies of the space that take as long, their tests included: an example, and the fingerprints of all."""
        found: dict[tuple[str, ...], tuple[dict[str, Value], list[str]]] = {}
        space = self.handle.sampler.space
        for print_, position in space.index.items():
            strategy = space.strategies[position]
            # Some of those that train as long have a test to wait for, which others have passed or do not need.
            alike = (*group(strategy), *self.twins.test_of(strategy))
            found.setdefault(alike, (strategy, []))[1].append(print_)
        return found

    def undecided(self, busy: bool) -> Proposal | None:
        """Return a strategy that a second run may decide otherwise, and that has not had one; None: there is none."""
        if busy:
            return None
        for record in self._second_runs():
            if self._fits_in_time(record.strategy):
                return self._once_more(record)
        return None

    def _second_runs(self) -> list[TrialRecord]:
        known = len(self.ledger.records), dict(self.requests.outside)
        if self._undecided is None or self._undecided[0] != known:
            found = second_runs(self.ledger, self.requests, self.handle.sampler.space.index)
            self._undecided = known, found
        return [record for record in self._undecided[1] if record.fingerprint not in self._retried]

    def _once_more(self, record: TrialRecord) -> Proposal:
        self._retried.add(record.fingerprint)
        return Proposal(record.strategy, record.source, role="retry")

    def _last_chance(self) -> Proposal | None:
        """Return a second run that could win, once another trial would leave no time for it."""
        leader = self.ledger.best()
        rival = next((record for record in self._second_runs() if could_win(record, leader)), None)
        if rival is None or not self._fits_in_time(rival.strategy):
            return None
        expected = self.ledger.timing.expected
        longest = max((expected(s) for s, _ in self._groups.values() if self._fits_in_time(s)), default=0.0)
        left = self.seconds_left() - longest - expected(rival.strategy)
        return self._once_more(rival) if left < self._reserve() else None

    def proof(self, busy: bool) -> Proposal | None:
        """Return the strategy that has to be proved; None: the best one is, or there is none, or no time for it."""
        leader = self.ledger.best()
        if busy or leader is None or leader.role == "proof" or self._proof_given_up:
            return None
        if self._proof_seconds(leader) / COLD > self.seconds_left():  # the margin is for keeping time back
            needed = format_duration(self._proof_seconds(leader) / COLD)
            self.give_up_proof(f"no time is left for a proof, which takes about {needed}")
            return None
        if self._proofs[leader.fingerprint] == PROOFS_AT_MOST:
            self.give_up_proof("the proof decided nothing")
            return None
        self._proofs[leader.fingerprint] += 1
        return Proposal(leader.strategy, leader.source, role="proof")

    def give_up_proof(self, why: str) -> None:
        """Prove nothing more, and say why."""
        self._proof_given_up = True
        self.listener.message(f"{why}: the best strategy's figures are the search's, not a proof's")

    def must_end(self, role: Role) -> bool:
        """Is the time over that a running trial may take? What a proof needs is not a search's to use up."""
        reserve = self._reserve()
        return self.seconds_left() <= (reserve + KILL_SECONDS if role != "proof" and reserve else 0.0)

    def no_time(self, found: Proposal) -> str:
        """Say that there is none, and what would be needed."""
        expected = self.ledger.timing.expected(found.strategy) + self.twins.seconds(found.strategy)
        reserve = self._reserve()
        kept = f", and {format_duration(reserve)} are kept for the proof of the best" if reserve else ""
        needs = f"it takes about {format_duration(expected)}{kept}, of {format_duration(self.seconds_left())} left"
        return f"no time left for {found.source} ({describe(found.strategy)}): {needs}"

    def fits(self, strategy: Strategy) -> bool:
        """Is there time for `strategy`, the test that it needs first, and the proof of the best?"""
        return self._fits_in_time(strategy)

    def _fits_in_time(self, strategy: Strategy) -> bool:
        timing = self.ledger.timing
        # A test that has to come first takes its own time.
        expected = timing.expected(strategy) + self.twins.seconds(strategy)
        # What is launched may turn out to be what has to be proved. The first of a kind is let off:
        # its estimate is a guess, and without it nothing is learned.
        own = expected * COLD if timing.knows(strategy) else 0.0
        return expected + max(self._reserve(), own) <= self.seconds_left()

    def _reserve(self) -> float:
        """Return the seconds that are kept back to prove the best so far."""
        leader = self.ledger.best()
        unproved = leader is not None and leader.role != "proof" and not self._proof_given_up
        return self._proof_seconds(leader) if leader is not None and unproved else 0.0

    def _proof_seconds(self, record: TrialRecord) -> float:
        # Cold: as long as the first run of its kind, or longer.
        same = [r.seconds for r in self.ledger.launches(record.fingerprint) if r.outcome is Outcome.OK]
        return max([*same, self.ledger.timing.expected(record.strategy)]) * COLD + self._test_seconds(record)

    def _test_seconds(self, record: TrialRecord) -> float:
        """What tests take that come before the proof."""
        test = None if self.ledger.can_compare(self.requests.seed) else self.twins.against_eager(record.strategy)
        return self.twins.seconds(record.strategy) + (0.0 if test is None else self.twins.open_seconds(test))
