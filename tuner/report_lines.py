"""The strategies that a report shows: which, under what names, and with what figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from strategies.knob import COMPILE_OFF, Value
from strategies.recipes import REFERENCES, complete, recipes
from tuner.graph_breaks import break_words
from tuner.kinds import Flag
from tuner.outcome import Outcome
from tuner.peak_phase import PeakPhase, peak_of
from tuner.record import StudyRecord, TrialRecord
from tuner.report_speed import Speed, Speeds
from tuner.saved_nothing import remarked
from tuner.space import canonical, describe, fingerprint
from tuner.wording import cause, headroom_bytes
from tuner.workload import Frozen

Known = Mapping[str, TrialRecord]
OF_COMPILING = ("mode", "scope", "dynamic", "fullgraph", "warmup_fraction")
"""Knobs that say how it is compiled: in these alone may an eager twin differ."""
_RAN = (Outcome.OK, Outcome.OVER_BUDGET)


class Line(Frozen):
    """One strategy in the report."""

    labels: tuple[str, ...]
    """What it is known as: ``winner``, ``reference: baseline``, ``recipe: layer``, ``best eager``."""
    strategy: dict[str, Value]
    description: str
    """Its values that are not baseline."""
    trial: int | None = None
    role: str
    outcome: Outcome
    cause: str
    """The outcome in words, with kind and phase."""
    detail: str = ""
    tokens_per_s: float | None = None
    winner_ratio: float | None = None
    """The winner's tokens per second over this one's, of what strategies are ranked by."""
    peak_device_bytes: int | None = None
    headroom_bytes: int | None = None
    compile_seconds: float | None = None
    peak: PeakPhase | None = None
    """The phase that set the peak; None: nothing was measured by phase."""
    twin_ratio: float | None = None
    """Its peak device over that of its eager twin: the same strategy with mode off. None: not known, or it is eager."""
    speed: Speed = Speed()
    flags: tuple[Flag, ...] = ()
    no_effect: tuple[str, ...] = ()
    """Knobs that changed nothing, each in a sentence."""
    graph_breaks: tuple[str, ...] = ()
    """By library, with their sites counted."""


def compared(
    study: StudyRecord, records: Sequence[TrialRecord], known: Known, fits: Sequence[TrialRecord]
) -> list[tuple[TrialRecord, tuple[str, ...]]]:
    """Return references, the best eager and each recipe with its names, one a strategy.

    Args:
        known: what stands for each strategy, by fingerprint.
        fits: those that are feasible, the fastest first.
    """
    labels: dict[str, list[str]] = {}
    for label, name in _named(study, records):
        if name in known:
            labels.setdefault(name, []).append(label)
    eager = next((r for r in fits if r.strategy["mode"] == COMPILE_OFF), None)
    if eager is not None:
        labels.setdefault(eager.fingerprint, []).append("best eager")
    return [(known[name], tuple(dict.fromkeys(names))) for name, names in labels.items()]


def _named(study: StudyRecord, records: Iterable[TrialRecord]) -> list[tuple[str, str]]:
    """Label and fingerprint of every strategy that has a name, references first.

    A recipe at the largest micro-batch is told by its record alone: its strategy depends on what fits.
    """
    named = [(f"reference: {recipe.name}", recipe) for recipe in REFERENCES]
    named += [(f"recipe: {r.name}", r) for r in recipes(study.workload.adapter) if not r.largest_micro_batch]
    found = [(label, fingerprint(complete(recipe.strategy))) for label, recipe in named]
    largest = {f"recipe: {r.name}" for r in recipes(study.workload.adapter) if r.largest_micro_batch}
    tried = {r.fingerprint: r.source for r in records if r.source in largest}
    return found + [(label, name) for name, label in tried.items()]


def line_of(
    study: StudyRecord,
    record: TrialRecord,
    labels: tuple[str, ...],
    winner: TrialRecord | None,
    known: Known,
    speeds: Speeds,
) -> Line:
    """Return what the report says of one strategy."""
    record = remarked(record, known)  # what it is compared with may have been measured later
    return Line(
        labels=labels,
        strategy=record.strategy,
        description=describe(record.strategy),
        trial=record.number,
        role=record.role,
        outcome=record.outcome,
        cause=cause(record),
        detail=record.detail,
        tokens_per_s=record.tokens_per_s,
        winner_ratio=speeds.ratio(winner, record),
        peak_device_bytes=record.peak_device_bytes,
        headroom_bytes=headroom_bytes(record, study.limit_bytes),
        compile_seconds=record.compile_seconds,
        peak=peak_of(record, study.workload),
        twin_ratio=_twin_ratio(record, known),
        speed=speeds.of(record),
        flags=record.flags,
        no_effect=tuple(record.result.no_effect.values()) if record.result else (),
        graph_breaks=break_words(record.result.compile.graph_breaks) if record.result else (),
    )


def _twin_ratio(record: TrialRecord, known: Known) -> float | None:
    """Peak device over the eager twin's: compiling is not taken to cost no memory, or to save any."""
    if record.strategy["mode"] == COMPILE_OFF:
        return None
    eager = canonical({**record.strategy, "mode": COMPILE_OFF})
    if any(eager[name] != value for name, value in record.strategy.items() if name not in OF_COMPILING):
        # Another knob has no meaning in eager (an activation memory budget): the two differ in more.
        return None
    twin = known.get(fingerprint(eager))
    if twin is None or twin.outcome not in _RAN or not twin.peak_device_bytes or not record.peak_device_bytes:
        return None
    return record.peak_device_bytes / twin.peak_device_bytes
