"""Whom a search tells what happens. A search knows no terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from strategies.knob import Strategy
from tuner.kinds import Phase
from tuner.record import StudyRecord, TrialRecord


class Listener(Protocol):
    """What a search says, in this order: started, then for each trial its three, then finished."""

    def started(
        self,
        study: StudyRecord,
        notes: Sequence[str],
        target_trials: int | None,
        time_budget_seconds: float | None,
        best: TrialRecord | None = None,
    ) -> None:
        """The study is open. `notes` are lines about what was assumed; None: no such bound.

        `best` is the best of what was known before.
        """

    def trial_started(self, number: int | str, strategy: Strategy, source: str) -> None:
        """A trial is being launched; `number` is ``proof`` or the like where it has none."""

    def phase(self, phase: Phase, note: str | None = None) -> None:
        """The running trial entered a phase, or says what it does in it."""

    def trial_finished(self, record: TrialRecord, best: TrialRecord | None, seconds_left: float) -> None:
        """A record was written. `best` is the best so far; `seconds_left` of the time budget."""

    def message(self, text: str) -> None:
        """One line that is neither of these."""

    def finished(self, text: str) -> None:
        """The search ended; `text` is why, in one sentence."""
