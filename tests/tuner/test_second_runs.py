"""Which second runs could still win; which there are, `test_chooser.py` asks through the chooser."""

from __future__ import annotations

import pytest

from tests.tuner.made import record_of
from tuner.outcome import Outcome
from tuner.second_runs import could_win

EAGER, COMPILED, GRAPHS = {}, {"mode": "default"}, {"mode": "reduce-overhead"}


@pytest.mark.parametrize(
    ("died", "leads", "could"),
    [
        (COMPILED, GRAPHS, False),
        (EAGER, COMPILED, False),
        (COMPILED, COMPILED, True),
        (GRAPHS, COMPILED, True),
        (COMPILED, EAGER, True),
    ],
)
def test_time_is_kept_for_what_is_as_fast_a_kind_as_the_best(
    died: dict[str, str], leads: dict[str, str], could: bool
) -> None:
    assert could_win(record_of(Outcome.OOM, dict(died)), record_of(strategy=dict(leads))) is could
    assert could_win(record_of(Outcome.OOM, dict(died)), None), "nothing else fits"
