"""What needs no trial any more, since records have shown what it comes to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from strategies.knob import Strategy
from strategies.registry import KNOBS
from strategies.ruled_out import RuledOut
from tuner.outcome import Outcome
from tuner.record import TrialRecord
from tuner.space import Space, canonical, fingerprint


class Exclusions:
    """Asks the knobs after each record, and tells what they leave out.

    Args:
        leave_out: is told each fingerprint that is not to be proposed.
        space: what may be proposed; None: nothing is.
    """

    def __init__(self, leave_out: Callable[[str], None], space: Space | None) -> None:
        self._leave_out, self._space = leave_out, space
        self._shown_by: dict[RuledOut, set[str]] = {}
        """Fingerprints of the strategies that have shown it."""
        self._news: list[str] = []

    def add(self, record: TrialRecord) -> None:
        """Take one more record."""
        if record.result is None:
            return
        strategy, facts = canonical(record.strategy), facts_of(record)
        for knob in KNOBS:
            if not knob.active(strategy):
                continue
            for value in knob.equivalent(strategy, facts) if record.outcome is Outcome.OK else ():
                self._leave_out(fingerprint({**strategy, knob.name: value}))
            found = knob.rules_out(strategy, facts)
            if found is not None:
                self._show(found, record.fingerprint)

    def news(self) -> list[str]:
        """Return what was ruled out since the last call, in sentences."""
        told, self._news = self._news, []
        return told

    def _show(self, found: RuledOut, by: str) -> None:
        shown = self._shown_by.setdefault(found, set())
        if by in shown or self._space is None:
            return
        shown.add(by)
        if len(shown) != found.trials:
            return
        ruled_out = [s for s in self._space.strategies if _is_in(s, found)]
        for strategy in ruled_out:
            self._leave_out(fingerprint(strategy))
        if ruled_out:
            self._news.append(found.reason)


def facts_of(record: TrialRecord) -> dict[str, Any]:
    """Return what a knob may read of a trial."""
    assert record.result is not None
    report = record.result.compile
    return {
        "outcome": record.outcome.value,
        "graph_breaks": sum(b.count for b in report.graph_breaks),
        "graphs": report.graphs,
        "flags": [flag.value for flag in record.flags],
        "no_effect": tuple(record.result.no_effect),
        "plan": report.plan,
    }


def _is_in(strategy: Strategy, found: RuledOut) -> bool:
    return all(strategy[name] in values for name, values in found.where)
