"""How long a trial will take: never a promise, rather too many seconds than too few."""

from __future__ import annotations

import pytest

from tests.tuner.made import record_of
from tuner.outcome import Outcome
from tuner.space import canonical
from tuner.timing import SLOW, UNKNOWN_SECONDS, WHOLE_MODEL, Timing, mode_class

EAGER = canonical({})
LAYER = canonical({"mode": "default", "scope": "layer"})
WHOLE = canonical({"mode": "default", "scope": "whole"})
GRAPHS = canonical({"mode": "reduce-overhead", "scope": "layer"})
SLOWEST = canonical({"mode": "max-autotune-no-cudagraphs", "scope": "layer"})


def test_kinds_of_modes() -> None:
    assert [mode_class(s) for s in (EAGER, LAYER, WHOLE, GRAPHS, SLOWEST)] == [
        *("eager", "compiled", "compiled", "graphs", "compiled")
    ]
    assert mode_class(canonical({"mode": "max-autotune"})) == "graphs"


def test_before_anything_is_known() -> None:
    timing = Timing()
    assert timing.expected(EAGER) == UNKNOWN_SECONDS["eager"] and not timing.knows(EAGER)
    assert timing.expected(LAYER) == UNKNOWN_SECONDS["compiled"]
    assert timing.expected(WHOLE) == UNKNOWN_SECONDS["compiled"] * WHOLE_MODEL
    assert timing.expected(SLOWEST) == UNKNOWN_SECONDS["compiled"] * SLOW


def test_what_was_seen_decides_alike_ones() -> None:
    timing = Timing([record_of(strategy=LAYER, seconds=20.0)])
    assert timing.expected(canonical({**LAYER, "micro_batch": 2})) == pytest.approx(22)
    assert timing.expected(WHOLE) == pytest.approx(20 * WHOLE_MODEL)
    assert timing.expected(SLOWEST) == pytest.approx(20 * SLOW)
    assert timing.knows(WHOLE) and not timing.knows(EAGER) and not timing.knows(GRAPHS)
    timing.seen(record_of(strategy=WHOLE, seconds=40.0))
    assert timing.expected(WHOLE) == pytest.approx(44)


def test_an_eager_trial_is_an_eager_trial_whatever_its_scope() -> None:
    timing = Timing([record_of(strategy={**EAGER, "checkpointing": "every-block"}, seconds=10.0)])
    assert timing.expected(EAGER) == pytest.approx(11)


def test_one_that_took_long_does_not_spoil_the_estimate() -> None:
    timing = Timing([record_of(strategy=LAYER, seconds=s) for s in (10.0, 11.0, 300.0, 12.0, 11.0)])
    assert timing.expected(LAYER) == pytest.approx(11 * 1.1)


@pytest.mark.parametrize("outcome", [Outcome.INTERRUPTED, Outcome.DEVICE_NOT_CLEAN])
def test_a_trial_that_was_cut_off_says_nothing(outcome: Outcome) -> None:
    assert not Timing([record_of(outcome, LAYER, seconds=1.0)]).knows(LAYER)


def test_one_that_died_took_its_time_too() -> None:
    assert Timing([record_of(Outcome.TIMEOUT, LAYER, seconds=180.0)]).expected(LAYER) == pytest.approx(198)
