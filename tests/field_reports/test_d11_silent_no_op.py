"""D11: the switch is on, and nothing was compiled."""

from __future__ import annotations

import pytest

from tests.field_reports.running import LAYER, WHOLE, run, users
from tuner.kinds import Kind
from tuner.outcome import Outcome

pytestmark = pytest.mark.usefixtures("quick_compile")


@pytest.mark.parametrize("function", ["disabled", "bypassing"])
def test_nothing_compiled_is_not_applied_and_no_data_point(function: str) -> None:
    found = run(users(function), **LAYER)
    verdict = found.verdict()
    assert (verdict.outcome, verdict.kind) == (Outcome.COMPILE_NOT_APPLIED, None)
    assert found.result.compile.graphs == 0 and "no graph was produced" in verdict.detail
    assert found.result.throughput is None


def test_under_fullgraph_what_asks_to_be_left_alone_is_unsupported() -> None:
    verdict = run(users("disabled"), **LAYER, fullgraph=True).verdict()
    assert (verdict.outcome, verdict.kind) == (Outcome.GRAPH_BREAK, Kind.UNSUPPORTED_BY_MODEL)


def test_inside_one_compiled_model_it_is_seen_as_a_break_with_what_ran_eager() -> None:
    found = run(users("disabled"), **WHOLE)
    report = found.result.compile
    assert [b.reason for b in report.graph_breaks] == ["Skip inlining `torch.compiler.disable()`d function"]
    assert report.eager_ops == 4, "two matrix products in each of two layers"


def test_a_plain_model_has_evidence() -> None:
    found = run(users("plain"), **LAYER)
    assert found.verdict().outcome is Outcome.OK
    assert found.result.compile.graphs > 0 and found.result.compile.compile_seconds > 0
