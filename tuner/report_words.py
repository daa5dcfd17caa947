"""The sentences of a report: its answer, and what would have to give where there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from strategies.knob import COMPILE_OFF
from strategies.recipes import leanest
from tuner.break_even import Ranking
from tuner.card_words import budget_words, into
from tuner.errors import ExitCode
from tuner.kinds import Phase, Replay
from tuner.outcome import Outcome
from tuner.record import StudyRecord, TrialRecord, feasible
from tuner.space import describe
from tuner.units import format_gib
from tuner.verdict import MEMORY, dies_while_loading
from tuner.wording import cause, headroom_bytes, replay_of
from tuner.workload import Adapter

_LEANER = {
    Adapter.FULL: "--adapter lora trains a small part of the weights, and needs no gradients and states for the rest",
    Adapter.LORA: "--adapter qlora holds the frozen weights in 4 bits instead of 16",
}


def answer(study: StudyRecord, records: Sequence[TrialRecord], code: ExitCode, ranking: Ranking) -> str:
    """Return one sentence that answers the question the study asked."""
    fits = feasible(records, study.limit_bytes, rate=ranking.rate)
    if fits:
        return _won(study, fits, ranking)
    own = [record for record in records if record.study == study.name] or list(records)
    if not own:
        return f"No trial has ended yet in study {study.name}."
    dead = dies_while_loading(study, records)
    if dead is not None:
        return f"Nothing fits {into(study)}: memory runs out in {dead.phase}, before any knob could change it."
    if code is ExitCode.NOTHING_FITS:
        return f"Nothing fits {into(study)}: the leanest strategies run out of memory too."
    return f"No verdict for {budget_words(study)}: none of {len(own)} launches ended ok ({_counted(own)})."


def _won(study: StudyRecord, fits: Sequence[TrialRecord], ranking: Ranking) -> str:
    winner = fits[0]
    room = headroom_bytes(winner, study.limit_bytes)
    proof = "proved in a fresh process" if winner.role == "proof" else "not proved yet"
    steps = ranking.train_steps
    over = "" if steps is None else f" over a run of {steps:,} steps, compiling included"
    return (
        f"Fastest of what fits {into(study)}{over}: {describe(winner.strategy)}, {_speed(winner, ranking)}"
        f"{_against_eager(fits, ranking)}, "
        f"{format_gib(winner.peak_device_bytes)} at its peak with {format_gib(room)} to spare, {proof}."
    )


def _speed(winner: TrialRecord, ranking: Ranking) -> str:
    speed = f"{winner.tokens_per_s:,.0f} tokens/s"
    if ranking.train_steps is None or winner.strategy["mode"] == COMPILE_OFF:
        return speed
    return f"{ranking.rate(winner):,.0f} tokens/s over that run and {speed} once compiled"


def _against_eager(fits: Sequence[TrialRecord], ranking: Ranking) -> str:
    winner = fits[0]
    if winner.strategy["mode"] == COMPILE_OFF:
        return " (eager)"
    eager = next((r for r in fits if r.strategy["mode"] == COMPILE_OFF), None)
    if eager is None or not ranking.rate(eager):
        return " (no eager strategy that was tried fits)"
    over = "" if ranking.train_steps is None else " over that run"
    return f" ({ranking.rate(winner) / ranking.rate(eager):.2f} times the best eager one measured{over})"


def _counted(records: Sequence[TrialRecord]) -> str:
    counts = Counter(cause(record) for record in records)
    return ", ".join(f"{count} {words}" for words, count in counts.most_common())


def would_have_to_give(
    study: StudyRecord, records: Sequence[TrialRecord], missed_by_bytes: int | None
) -> tuple[str, ...]:
    """Return what a person could change so that something fits, or so that there is a verdict."""
    memory = [record for record in records if record.outcome in MEMORY]
    if not memory:
        return _without_memory(records)
    workload = study.workload
    dead = dies_while_loading(study, records)
    if dead is not None and dead.phase is Phase.START:
        # Before the model is there: neither an adapter nor a shape changes it.
        return (f"{_larger(study)}: the libraries alone, before any model, take more than this",)
    lines = []
    if missed_by_bytes:
        lines.append(f"{format_gib(missed_by_bytes)} more for the nearest miss: {_larger(study)}")
    if workload.adapter in _LEANER:
        lines.append(_LEANER[workload.adapter])
    if dead is not None:
        lines.append("a smaller model: the weights alone do not fit")
    else:
        lines.append(f"shorter sequences than {workload.lengths.max} tokens (--seq-len)")
        lines += [f"not tried: {name}" for name in _untried(study, records)]
        lines += _late(memory)
    return tuple(lines)


_LATE: dict[Replay, str] = {
    Replay.SKEWED: "a router that spreads its tokens better: training fits, and memory ran out {where}",
    Replay.PARTIAL: "whole batches alone (drop_last: true): training fits, and memory ran out {where}",
    Replay.EVALUATION: (
        "an evaluation of fewer (--eval-batch-size) or shorter sequences: training fits, and memory ran out {where}"
    ),
}
"""What gives where all of training fits; of the longest batch the line about shorter sequences says it."""


def _late(memory: Sequence[TrialRecord]) -> list[str]:
    """What would have to give so that what comes after `steady` fits. Never the training micro-batch: it fits."""
    found = {replay_of(record) for record in memory}
    return [words.format(where=replay.words) for replay, words in _LATE.items() if replay in found]


def _larger(study: StudyRecord) -> str:
    return "a larger --budget-gb" if study.card is None else "a larger card"


def _without_memory(records: Sequence[TrialRecord]) -> tuple[str, ...]:
    if any(record.outcome in (Outcome.TIMEOUT, Outcome.INTERRUPTED) for record in records):
        return ("more time: a longer --time-budget, or --deadline first_step=SECONDS for slow compiles",)
    return ("the cause above, which is not memory: `tuner doctor` looks at the machine",) if records else ()


def _untried(study: StudyRecord, records: Sequence[TrialRecord]) -> list[str]:
    """The leanest strategies that are not known, by what they are."""
    tried = {describe(record.strategy) for record in records}
    wanted = [describe(recipe.strategy) for recipe in leanest(study.workload.adapter)]
    return [name for name in wanted if name not in tried]
