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


def test_inside_one_compiled_model_whose_layers_ask_to_be_left_alone_next_to_nothing_is_compiled() -> None:
    found = run(users("disabled"), **WHOLE)
    verdict, report = found.verdict(), found.result.compile
    assert [b.reason for b in report.graph_breaks] == ["Skip inlining `torch.compiler.disable()`d function"]
    assert (report.eager_ops, report.compiled_ops) == (4, 1), "two products in each of two layers, and the head"
    assert (verdict.outcome, verdict.kind) == (Outcome.COMPILE_NOT_APPLIED, None)
    assert verdict.detail == "4 of 5 matrix products and attentions ran eager, between graph breaks"
    assert found.result.throughput is None, "it is no data point for 'compile gives nothing'"


@pytest.mark.parametrize("function", ["masked", "routed", "quantised"])
@pytest.mark.parametrize("strategy", [LAYER, WHOLE], ids=["layer", "whole"])
def test_a_model_with_breaks_whose_products_are_compiled_is_healthy(function: str, strategy: dict[str, str]) -> None:
    found = run(users(function), **strategy, dynamic="auto")
    report = found.result.compile
    assert report.graph_breaks and report.compiled_ops and report.eager_ops <= report.compiled_ops
    assert (found.verdict().outcome, found.verdict().detail) == (Outcome.OK, "")


def test_a_plain_model_has_evidence() -> None:
    found = run(users("plain"), **LAYER)
    assert found.verdict().outcome is Outcome.OK
    assert found.result.compile.graphs > 0 and found.result.compile.compile_seconds > 0
