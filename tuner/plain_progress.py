"""The listeners without a live line: plain lines for a log, JSON for a program."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TextIO

from strategies.knob import Strategy
from tuner.kinds import Phase
from tuner.outcome import Outcome
from tuner.peak_phase import peak_of
from tuner.record import StudyRecord, TrialRecord
from tuner.space import describe
from tuner.units import format_duration, format_gib
from tuner.wording import headroom_bytes, result_words
from tuner.workload import Workload


def trial_line(record: TrialRecord, limit_bytes: int, workload: Workload | None = None) -> str:
    """The one line of a finished trial; with the phase that set its peak, where that was not the steady one."""
    number = record.role if record.number is None else str(record.number)
    who = f"{describe(record.strategy)} ({record.source})" if record.source else describe(record.strategy)
    peak = peak_of(record, workload) if record.outcome in (Outcome.OK, Outcome.OVER_BUDGET) else None
    where = f", {peak.words()}" if peak is not None and peak.above_steady_bytes else ""
    return f"{number:>5}  {who}  {result_words(record, limit_bytes)}{where}  [{format_duration(record.seconds)}]"


class Told:
    """What every listener keeps in mind."""

    def __init__(self) -> None:
        self.limit_bytes = 0
        self.workload: Workload | None = None

    def remember(self, study: StudyRecord) -> None:
        """Keep what later lines are said against."""
        self.limit_bytes, self.workload = study.limit_bytes, study.workload

    def best_words(self, best: TrialRecord | None) -> str:
        """The best so far in a few words."""
        if best is None:
            return "none fits yet"
        room = headroom_bytes(best, self.limit_bytes)
        return f"{best.tokens_per_s:,.0f} tokens/s, {format_gib(room)} to spare"


class PlainListener(Told):
    """One line for each thing, for a log or a pipe."""

    def __init__(self, out: TextIO) -> None:
        super().__init__()
        self.out = out

    def _say(self, text: str) -> None:
        print(text, file=self.out, flush=True)

    def started(
        self,
        study: StudyRecord,
        notes: Sequence[str],
        target_trials: int | None,
        time_budget_seconds: float | None,
        best: TrialRecord | None = None,
    ) -> None:
        """Say what is searched."""
        self.remember(study)
        self._say(opening(study, target_trials, time_budget_seconds))
        for note in notes:
            self._say(note)
        if best is not None:
            self._say(f"best so far: {describe(best.strategy)}, {self.best_words(best)}")

    def trial_started(self, number: int | str, strategy: Strategy, source: str) -> None:
        """Say what is launched: without a terminal this line shows that the program lives."""
        self._say(f"{number:>5}  {describe(strategy)} ({source}) ...")

    def phase(self, phase: Phase, note: str | None = None) -> None:
        """Nothing: a phase is for those who watch."""

    def trial_finished(self, record: TrialRecord, best: TrialRecord | None, seconds_left: float) -> None:
        """Say how it ended."""
        line = trial_line(record, self.limit_bytes, self.workload)
        self._say(f"{line}; best: {self.best_words(best)}; {format_duration(max(0.0, seconds_left))} left")

    def message(self, text: str) -> None:
        """Say it."""
        self._say(text)

    def finished(self, text: str) -> None:
        """Say why it ended."""
        self._say(text)


class JsonListener(Told):
    """One JSON object a trial on stdout; all else on stderr."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        super().__init__()
        self.out, self.notes = out, PlainListener(err)

    def started(
        self,
        study: StudyRecord,
        notes: Sequence[str],
        target_trials: int | None,
        time_budget_seconds: float | None,
        best: TrialRecord | None = None,
    ) -> None:
        """Say it on stderr."""
        self.remember(study)
        self.notes.started(study, notes, target_trials, time_budget_seconds, best)

    def trial_started(self, number: int | str, strategy: Strategy, source: str) -> None:
        """Nothing: the object of the finished trial has it all."""

    def phase(self, phase: Phase, note: str | None = None) -> None:
        """Nothing."""

    def trial_finished(self, record: TrialRecord, best: TrialRecord | None, seconds_left: float) -> None:
        """Write the record, without the worker's whole result and log."""
        fields = record.model_dump(mode="json", exclude={"result", "tail"})
        fields["headroom_bytes"] = headroom_bytes(record, self.limit_bytes)
        peak = peak_of(record, self.workload)
        fields["peak_phase"] = None if peak is None else peak.model_dump(mode="json")
        fields["best"] = best.uuid if best else None
        fields["seconds_left"] = round(seconds_left, 1)
        print(json.dumps(fields), file=self.out, flush=True)

    def message(self, text: str) -> None:
        """Say it on stderr."""
        self.notes.message(text)

    def finished(self, text: str) -> None:
        """Say it on stderr."""
        self.notes.finished(text)


def opening(study: StudyRecord, target_trials: int | None, time_budget_seconds: float | None) -> str:
    """The first line: what is searched, where, within what."""
    card = f" (card {study.card})" if study.card else ""
    bounds = [f"budget {format_gib(study.budget_bytes)}{card}", f"limit {format_gib(study.limit_bytes)}"]
    if time_budget_seconds is not None:
        bounds.append(format_duration(time_budget_seconds))
    if target_trials is not None:
        bounds.append(f"at most {target_trials} trials")
    where = study.environment.device_name
    return f"study {study.name}: {study.workload.describe()}; on {where}; {', '.join(bounds)}"
