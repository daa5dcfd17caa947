"""What is known of a study's key while a search runs: the records, and what stands in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from strategies.knob import COMPILE_OFF, Strategy, Value
from strategies.recipes import REFERENCES, complete, recipes
from tuner.break_even import Ranking
from tuner.eager_runs import eager_spread, reference_record, tolerances
from tuner.exclusions import Exclusions
from tuner.kinds import Phase
from tuner.measured import Parity
from tuner.outcome import Outcome
from tuner.parity import TOLERANCE, Tolerance
from tuner.record import StudyRecord, TrialRecord, best, standing
from tuner.saved_nothing import remarked
from tuner.seen import seen
from tuner.space import Space, canonical, fingerprint
from tuner.timing import Timing
from tuner.verdict import dies_while_loading, is_of_memory, leanest_died
from tuner.workload import Precision

ALIKE = 3
"""Recipes that must have ended as the references did before a search stops for it."""


class Ledger:
    """The records of one key under one limit.

    Args:
        records: in the order in which they were written; taken as the study sees them.
        equivalent: is told each fingerprint that needs no trial: it gives the same as one that ran, or is ruled out.
        eager_only: the user fixed ``mode=off``, so the eager leanest recipe decides alone.
        space: what may be proposed; None: nothing is, by a `run`.
        deadlines: seconds by phase of what is launched now; None: as those that timed out had.
        train_steps: steps of the run to rank by; None: throughput alone.
    """

    def __init__(
        self,
        study: StudyRecord,
        records: Iterable[TrialRecord],
        equivalent: Callable[[str], None],
        *,
        eager_only: bool = False,
        space: Space | None = None,
        deadlines: Mapping[Phase, float] | None = None,
        train_steps: int | None = None,
    ) -> None:
        self.study, self.eager_only, self.space = study, eager_only, space
        self.records: list[TrialRecord] = []
        self.timing = Timing()
        self.ranking = Ranking(train_steps)
        self._deadlines = deadlines
        self._exclusions = Exclusions(equivalent, space)
        self._standing: dict[str, TrialRecord] = {}
        self._launches: dict[str, list[TrialRecord]] = {}
        self._best: TrialRecord | None = None
        self._judged = 0
        """Records that `_best` takes account of: it is asked for often while a trial runs."""
        self._tolerances: dict[int, Mapping[Precision, Tolerance]] = {}
        """By seed, as the eager records so far have it: it is asked for with each trial, and they are few."""
        for record in seen(study, records):
            self.add(record)

    def add(self, record: TrialRecord) -> None:
        """Take one more record."""
        self.records.append(record)
        self.timing.seen(record)
        self.ranking.costs.seen(record)
        # Only this strategy's own records can change what stands for it.
        same = self._launches.setdefault(record.fingerprint, [])
        same.append(record)
        self._standing |= standing(same, self.study.limit_bytes, self._deadlines)
        if record.strategy["mode"] == COMPILE_OFF:
            self._tolerances.clear()
        self._exclusions.add(record)

    def news(self) -> list[str]:
        """Return what was ruled out since the last call, in sentences for a person."""
        return self._exclusions.news()

    def remarked(self, record: TrialRecord) -> TrialRecord:
        """Return a new record with what is seen of it beside the others alone (`saved_nothing`)."""
        return remarked(record, self._standing)

    def standing(self, strategy: dict[str, Value]) -> TrialRecord | None:
        """Return the record that stands for a strategy under the study's limit; None: not known."""
        return self._standing.get(fingerprint(strategy))

    def launches(self, fingerprint_: str) -> list[TrialRecord]:
        """Return all records of a strategy, in order."""
        return self._launches.get(fingerprint_, [])

    def all_standing(self) -> list[TrialRecord]:
        """Return the record that stands for each strategy."""
        return list(self._standing.values())

    def best(self) -> TrialRecord | None:
        """Return the best so far."""
        if self._judged != len(self.records):
            limit, rate = self.study.limit_bytes, self.ranking.rate
            self._best, self._judged = best(self._standing.values(), limit, rate=rate), len(self.records)
        return self._best

    def reference(self, seed: int, fingerprint_: str) -> Parity | None:
        """Return loss and gradient of the baseline, else of eager with checkpointing.

        None: neither ran with this seed, or the strategy asked about is the reference itself.
        """
        record = reference_record(self._standing, seed)
        if record is None or record.result is None or record.fingerprint == fingerprint_:
            return None
        return record.result.parity

    def tolerance(self, seed: int, strategy: Strategy) -> Mapping[Precision, Tolerance]:
        """Return what a run of `strategy` may differ by from the reference.

        It is raised as far as eager runs differ from the reference themselves; not for an eager run,
        or each would let the next one differ by more.
        """
        if strategy["mode"] == COMPILE_OFF:
            return TOLERANCE
        if seed not in self._tolerances:
            workload = self.study.workload
            self._tolerances[seed] = tolerances(eager_spread(self._standing, seed, workload), workload)
        return self._tolerances[seed]

    def can_compare(self, seed: int) -> bool:
        """Is there a reference that loss and gradient can be compared with? None is one that drops at random."""
        record = reference_record(self._standing, seed)
        parity = None if record is None or record.result is None else record.result.parity
        return parity is not None and not parity.with_dropout

    def nothing_fits(self) -> str | None:
        """Return why it is known that nothing fits; None: it is not."""
        if self.best() is not None:
            return None
        if (dead := dies_while_loading(self.study, self.all_standing())) is not None:
            return f"out of memory in {dead.phase}, and no knob changes that"
        if leanest_died(self.study, self.all_standing(), self.eager_only):
            return "the leanest strategies ran out of memory"
        return None

    def nothing_left_to_try(self) -> str | None:
        """Return why no further launch can help; None: one may."""
        if (known := self.nothing_fits()) is not None or self.best() is not None:
            return known
        cause = self._same_cause()
        return cause and f"the references and the first {ALIKE} recipes all ended with {cause}"

    def _same_cause(self) -> str | None:
        """Return what the references and the first recipes all ended with; None: they differ, or some are open."""
        tried = [s for s in self._recipes() if self.space is not None and s in self.space][:ALIKE]
        if len(tried) < ALIKE:
            return None
        found = [self.standing(s) for s in (*(canonical(complete(r.strategy)) for r in REFERENCES), *tried)]
        causes = {None if r is None or is_of_memory(r) else (r.outcome, r.kind) for r in found}
        if len(causes) != 1 or (cause := causes.pop()) is None:
            return None
        outcome, kind = cause
        if outcome is Outcome.OK:
            return None
        return outcome + (f" ({kind})" if kind else "")

    def _recipes(self) -> list[dict[str, Value]]:
        # One at the largest micro-batch begins with a reference.
        named = [r for r in recipes(self.study.workload.adapter) if not r.largest_micro_batch]
        return [canonical(complete(recipe.strategy)) for recipe in named]
