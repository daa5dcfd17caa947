"""What compiling costs a run: the steps that pay for it, and throughput with it counted in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from strategies.recipes import REFERENCES, complete
from tuner.kinds import Flag
from tuner.outcome import Outcome
from tuner.record import TrialRecord
from tuner.space import fingerprint
from tuner.workload import Frozen


@dataclass(slots=True)
class CompileTimes:
    """The latest launches of one strategy that tell how long it compiles."""

    cold: TrialRecord | None = None
    """With an empty compile cache."""
    warm: TrialRecord | None = None
    """With what the cache had from other strategies, or from itself."""
    unsaid: TrialRecord | None = None
    """It is not known with which."""

    @property
    def first_run(self) -> TrialRecord | None:
        """The launch that is nearest to a person's first run: the cold one where there is one."""
        return self.cold or self.unsaid or self.warm

    @property
    def seconds(self) -> float:
        """Seconds that a run pays for compiling (`first_run`); nothing where nothing is compiled."""
        told = self.first_run
        return 0.0 if told is None or told.compile_seconds is None else told.compile_seconds


class CompileCosts:
    """`CompileTimes` of every strategy that was launched; `seen` adds a record."""

    def __init__(self, records: Iterable[TrialRecord] = ()) -> None:
        self._times: dict[str, CompileTimes] = {}
        for record in records:
            self.seen(record)

    def seen(self, record: TrialRecord) -> None:
        """Learn from a launch that was measured to its end."""
        if record.compile_seconds is None:
            return
        times = self._times.setdefault(record.fingerprint, CompileTimes())
        if Flag.COLD in record.flags:
            times.cold = record
        elif Flag.WARM in record.flags:
            times.warm = record
        else:
            times.unsaid = record

    def of(self, record: TrialRecord) -> CompileTimes:
        """Return what is known of the record's strategy."""
        return self._times.get(record.fingerprint, CompileTimes())


class Ranking:
    """What strategies are ranked by: throughput, or throughput over a whole run with its compiling.

    Args:
        train_steps: optimizer steps of the run that is planned; None: throughput alone counts.
    """

    def __init__(self, train_steps: int | None, records: Iterable[TrialRecord] = ()) -> None:
        self.train_steps = train_steps
        self.costs = CompileCosts(records)

    def rate(self, record: TrialRecord) -> float:
        """Return tokens per second; 0, so last, of a record that does not tell it."""
        if self.train_steps is None or not record.tokens_per_s:
            return record.tokens_per_s or 0.0
        tokens = self.train_steps * (_tokens_per_step(record) or 0.0)
        return tokens / (self.costs.of(record).seconds + tokens / record.tokens_per_s) if tokens else 0.0


class BreakEven(Frozen):
    """When a strategy has paid for its compiling."""

    steps: int | None
    """Optimizer steps; None: never, it is no faster."""
    against: str
    """The reference it is compared with, as ``baseline``."""


def reference(known: Mapping[str, TrialRecord]) -> tuple[str, TrialRecord] | None:
    """Return name and record of the reference that ran at full depth; None: none did.

    The baseline, else eager with checkpointing.

    Args:
        known: by fingerprint, the record that stands for each strategy.
    """
    for recipe in REFERENCES:
        record = known.get(fingerprint(complete(recipe.strategy)))
        if record is not None and record.outcome is Outcome.OK and record.tokens_per_s:
            return recipe.name, record
    return None


def break_even(record: TrialRecord, costs: CompileCosts, against: tuple[str, TrialRecord] | None) -> BreakEven | None:
    """Return after how many steps `record`'s strategy has caught up with a reference that compiles nothing.

    None: it compiles nothing itself, there is no reference, or figures are missing.
    """
    if against is None or costs.of(record).first_run is None or not record.tokens_per_s:
        return None
    name, eager = against
    tokens = _tokens_per_step(record) or _tokens_per_step(eager)
    if not eager.tokens_per_s or tokens is None:
        return None
    saved = tokens / eager.tokens_per_s - tokens / record.tokens_per_s
    return BreakEven(steps=math.ceil(costs.of(record).seconds / saved) if saved > 0 else None, against=name)


def _tokens_per_step(record: TrialRecord) -> float | None:
    through = record.result.throughput if record.result else None
    return through.tokens_per_step if through else None
