"""D6: a branch on a tensor's values, and a router that lists its counts."""

from __future__ import annotations

import pytest

from tests.field_reports.running import LAYER, line_of, run, users
from tuner.kinds import Kind, Phase
from tuner.outcome import Outcome

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
