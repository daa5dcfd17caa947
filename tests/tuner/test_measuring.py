"""What measures on a bench."""

from __future__ import annotations

from tests.tuner.searching import Bench, bench
from tests.tuner.searching import opened_bench as opened
from tuner.measuring import make_requests
from tuner.spec import StudySpec

__all__ = ["bench"]


def test_deadlines_given_lie_over_those_of_the_time_budget(bench: Bench) -> None:
    with opened(deadline={"load": 7}, time_budget="1h") as made:
        asked = StudySpec.model_validate({"deadline": {"load": 7}, "time_budget": "1h"})
        found = make_requests(made, "s", asked).deadlines
        assert found["load"] == 7 and found["first_step"] == 900  # type: ignore[index]
