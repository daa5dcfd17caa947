"""What to do about each cause."""

from __future__ import annotations

import pytest

from tuner.advice import SHORT, advice, short_advice
from tuner.kinds import Kind
from tuner.outcome import Outcome


def test_every_kind_has_its_advice() -> None:
    for kind in Kind:
        assert any(advice(outcome, kind) for outcome in Outcome), kind


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.OOM, Outcome.OVER_BUDGET, Outcome.INTERRUPTED])
def test_what_a_search_answers_itself_has_none(outcome: Outcome) -> None:
    assert advice(outcome, None) is None


def test_only_short_ones_go_on_a_line() -> None:
    assert short_advice(Outcome.TIMEOUT, None) == "--deadline PHASE=SECONDS gives it longer"
    assert short_advice(Outcome.WRONG_RESULT, Kind.NO_GRADIENT) is None
    said = [a for o in Outcome for k in (None, *Kind) if (a := advice(o, k))]
    assert all(not a.endswith(".") and len(a) <= 2 * SHORT for a in said)
