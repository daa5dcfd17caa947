"""What a person's training keeps, or loses, by a strategy, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from strategies.optimizer import KNOB as OPTIMIZER
from tuner.eager_runs import spread_words
from tuner.outcome import Outcome
from tuner.record import StudyRecord, TrialRecord, standing
from tuner.space import describe
from tuner.workload import Workload

UNEVEN = 0.1
"""Launches of one strategy that differ by more than this share of the fastest are told."""


def same_step(workload: Workload) -> str:
    """Return the line that says what no strategy changes: what an optimizer step trains."""
    sequences = "1 sequence" if workload.batch_size == 1 else f"{workload.batch_size} sequences"
    return (
        f"every strategy trains the same optimizer step: {sequences} of {workload.lengths.describe()}, "
        "loss normalised by the step's tokens"
    )


def truth_notes(study: StudyRecord, records: Sequence[TrialRecord], fits: Sequence[TrialRecord]) -> tuple[str, ...]:
    """Return what to know of a winner's loss and gradients.

    Args:
        fits: what is feasible, the winner first.
    """
    if not fits:
        return ()
    spread = spread_words(standing(records, study.limit_bytes), fits[0].seed, study.workload)
    said = (_uneven(records, fits[0]), _other_numbers(fits), spread)
    return tuple(sentence for sentence in said if sentence is not None)


def _uneven(records: Sequence[TrialRecord], winner: TrialRecord) -> str | None:
    """Say where launches of the winner came to very different speeds: its ratios are no better known than that."""
    same = [r for r in records if r.fingerprint == winner.fingerprint and r.outcome is Outcome.OK]
    speeds = sorted(r.tokens_per_s for r in same if r.tokens_per_s)
    if len(speeds) < 2 or speeds[0] >= (1 - UNEVEN) * speeds[-1]:
        return None
    return (
        f"the winner was measured {len(speeds)} times, at {speeds[0]:,.0f} to {speeds[-1]:,.0f} tokens/s: "
        "the machine is uneven, and a ratio is no surer than that"
    )


def _other_numbers(fits: Sequence[TrialRecord]) -> str | None:
    """Of what is searched the 8-bit optimizers alone change the numbers of training."""
    optimizer = fits[0].strategy["optimizer"]
    if optimizer == OPTIMIZER.baseline:
        return None
    said = f"{optimizer} changes the numbers of training (8-bit states)"
    plain = next((record for record in fits if record.strategy["optimizer"] == OPTIMIZER.baseline), None)
    if plain is None:
        return f"{said}; nothing without it is known to fit"
    return f"{said}; the best without it: {describe(plain.strategy)}, {plain.tokens_per_s or 0.0:,.0f} tokens/s"
