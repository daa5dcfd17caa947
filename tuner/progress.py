"""The listener that draws with rich, and the choice of a listener for this process's stdout."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from strategies.knob import Strategy
from tuner.kinds import Phase
from tuner.listener import Listener
from tuner.outcome import Outcome
from tuner.plain_progress import JsonListener, PlainListener, Told, opening, trial_line
from tuner.record import StudyRecord, TrialRecord
from tuner.space import describe
from tuner.units import format_duration

PIPE_WIDTH = 160
"""Of a log or a pipe, where rich would wrap at 80."""
_STYLES = {Outcome.OK: "green", Outcome.OVER_BUDGET: "yellow", Outcome.OOM: "yellow", Outcome.INTERRUPTED: "dim"}


def make_console(file: TextIO | None = None) -> Console:
    """Return a console for `file`, stdout unless said.

    NO_COLOR, if set to anything, takes the colours away; COLUMNS sets the width.
    """
    console = Console(file=file, no_color=bool(os.environ.get("NO_COLOR")) or None, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPE_WIDTH
    return console


@contextmanager
def listening(as_json: bool = False) -> Iterator[Listener]:
    """Give the listener for this process's stdout; the live line goes away whatever happens."""
    console = make_console()
    if as_json:
        yield JsonListener(sys.stdout, sys.stderr)
    elif not console.is_terminal:
        yield PlainListener(sys.stdout)
    else:
        listener = RichListener(console)
        try:
            yield listener
        finally:
            listener.live.stop()


class RichListener(Told):
    """A live line below the lines of the finished trials."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console
        self.done = 0
        self.target: int | None = None
        self.ends_at: float | None = None
        self.best = "none fits yet"
        self.name, self.running = "", ""
        self.running_since = 0.0
        # Last: Live draws the line as soon as it is made.
        self.live = Live(console=console, get_renderable=self.line, refresh_per_second=4, transient=True)

    def started(
        self,
        study: StudyRecord,
        notes: Sequence[str],
        target_trials: int | None,
        time_budget_seconds: float | None,
        best: TrialRecord | None = None,
    ) -> None:
        """Print what is searched and begin the live line."""
        self.remember(study)
        self.target, self.best = target_trials, self.best_words(best)
        self.ends_at = None if time_budget_seconds is None else time.monotonic() + time_budget_seconds
        self.console.print(Text(opening(study, target_trials, time_budget_seconds), style="bold"))
        for note in notes:
            self.message(note)
        self.live.start()

    def trial_started(self, number: int | str, strategy: Strategy, source: str) -> None:
        """Show it in the live line."""
        self._run(f"{number}: {describe(strategy)}")
        self.name = self.running

    def phase(self, phase: Phase, note: str | None = None) -> None:
        """Show it in the live line."""
        self._run(f"{self.name}: {phase}" + (f" ({note})" if note else ""))

    def _run(self, text: str) -> None:
        self.running, self.running_since = text, time.monotonic()

    def trial_finished(self, record: TrialRecord, best: TrialRecord | None, seconds_left: float) -> None:
        """Print its line above the live one."""
        self.done += record.role == "search"
        self.best = self.best_words(best)
        self.ends_at = time.monotonic() + seconds_left
        self.running = ""
        line = trial_line(record, self.limit_bytes, self.workload)
        self.console.print(Text(line, style=_STYLES.get(record.outcome, "red")))

    def message(self, text: str) -> None:
        """Print it above the live line."""
        self.console.print(Text(text, style="dim"))

    def finished(self, text: str) -> None:
        """Take the live line away and say why it ended."""
        self.live.stop()
        self.console.print(Text(text))

    def line(self) -> Text:
        """Trials done, time left, best so far, and the phase of the running trial with its seconds."""
        trials = f"{self.done} trials" if self.target is None else f"{self.done} of {self.target} trials"
        parts = [trials]
        if self.ends_at is not None:
            parts.append(f"{format_duration(max(0.0, self.ends_at - time.monotonic()))} left")
        parts.append(f"best: {self.best}")
        if self.running:
            parts.append(f"{self.running}, {time.monotonic() - self.running_since:.0f} s")
        return Text(" | ".join(parts), no_wrap=True, overflow="ellipsis")
