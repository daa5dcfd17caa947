"""What a report tells of one strategy's speed beside its throughput."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.break_even import BreakEven, Ranking, break_even, reference
from tuner.measured import Clocks, CompileParts
from tuner.record import TrialRecord
from tuner.speed_words import compile_words
from tuner.workload import Frozen


class Speed(Frozen):
    """How well throughput is known, and what compiling costs."""

    median_within: float | None = None
    """Half the 95 % interval of the median step, over it (`Throughput.median_within`)."""
    run_tokens_per_s: float | None = None
    """Over the whole run that strategies are ranked by, compiling included; None: they are ranked by throughput."""
    compile_cold_seconds: float | None = None
    """Of the latest launch with an empty compile cache."""
    compile_warm_seconds: float | None = None
    compile_parts: CompileParts | None = None
    """Of the cold launch, else of the one that there is."""
    compile_words: str = ""
    """All of these in words."""
    break_even: BreakEven | None = None
    """When compiling is paid for; None: nothing is compiled, or no reference ran at full depth."""
    clocks: Clocks | None = None
    """What NVML said of the card beside the steps that count."""


class Speeds:
    """Makes them for one report.

    Args:
        device_type: ``cuda`` or ``cpu``, where the strategies were measured.
        known: the record that stands for each strategy, by fingerprint.
    """

    def __init__(self, device_type: str, known: Mapping[str, TrialRecord], ranking: Ranking) -> None:
        self._device_type, self._ranking = device_type, ranking
        self._reference = reference(known)

    def of(self, record: TrialRecord) -> Speed:
        """Return what there is to tell of a record's strategy."""
        times = self._ranking.costs.of(record)
        first = times.first_run
        through = record.result.throughput if record.result else None
        over_the_run = self._ranking.train_steps is not None and record.tokens_per_s is not None
        return Speed(
            median_within=through.median_within if through else None,
            run_tokens_per_s=self._ranking.rate(record) if over_the_run else None,
            compile_cold_seconds=times.cold.compile_seconds if times.cold else None,
            compile_warm_seconds=times.warm.compile_seconds if times.warm else None,
            compile_parts=first.result.compile.parts if first and first.result else None,
            compile_words=compile_words(times, self._device_type),
            break_even=break_even(record, self._ranking.costs, self._reference),
            clocks=through.clocks if through else None,
        )

    def ratio(self, winner: TrialRecord | None, record: TrialRecord) -> float | None:
        """Return the winner's tokens per second over the record's, of what they are ranked by; None: not known."""
        own = self._ranking.rate(record)
        return self._ranking.rate(winner) / own if winner is not None and own else None
