"""D6: a branch on a tensor's values, and a router that lists its counts."""

from __future__ import annotations

import pytest

from tests.field_reports.running import LAYER, line_of, run, users
from tests.tuner.searching import Bench, End, bench
from tuner.kinds import Kind, Phase
from tuner.outcome import Outcome
from tuner.protocol import TrialRequest

__all__ = ["bench"]
pytestmark = pytest.mark.usefixtures("quick_compile")


@pytest.mark.parametrize(("function", "mark"), [("masked", "the branch"), ("routed", "the list")])
def test_a_break_has_its_line_once_and_is_no_fault(function: str, mark: str) -> None:
    found = run(users(function), **LAYER, dynamic="auto")
    assert found.verdict().outcome is Outcome.OK
    sites = [b.site for b in found.result.compile.graph_breaks]
    assert sites.count(line_of(mark)) == 1
    at_mark = next(b for b in found.result.compile.graph_breaks if b.site == line_of(mark))
    assert at_mark.count >= 1 and at_mark.reason


def test_under_fullgraph_the_branch_ends_it_with_its_line() -> None:
    verdict = run(users("masked"), **LAYER, fullgraph=True).verdict()
    assert (verdict.outcome, verdict.kind) == (Outcome.GRAPH_BREAK, Kind.UNSUPPORTED_BY_MODEL)
    assert verdict.phase is Phase.FIRST_STEP and line_of("the branch") in verdict.detail


def fullgraph_breaks(request: TrialRequest, _: bool) -> End | None:
    return End(seconds=2.0, failure=("graph_break", "first_step")) if request.strategy["fullgraph"] else None


def test_after_two_breaks_of_a_scope_fullgraph_is_left_alone_there_and_it_is_said_once(bench: Bench) -> None:
    only = {"mode": "default", "scope": "layer"}
    found = bench.run(fullgraph_breaks, trials=30, fix=only, time_budget="2h")
    broke = [r for r in found.heard.records if r.outcome is Outcome.GRAPH_BREAK]
    assert len(broke) == 2 and len(found.heard.records) > 20
    said = "fullgraph=true is not tried any more with scope=layer: 2 trials ended in a graph break"
    assert found.heard.messages.count(said) == 1
    again = bench.run(fullgraph_breaks, trials=10, fix=only, time_budget="2h")
    assert Outcome.GRAPH_BREAK not in again.heard.outcomes, "a resumed search knows it from the records"
    assert again.heard.messages.count(said) == 1
