"""D8: a library's quantised linears break the graph in every layer."""

from __future__ import annotations

import pytest

from tests.field_reports.running import LAYER, WHOLE, line_of, run, users
from tuner.kinds import Kind
from tuner.outcome import Outcome

pytestmark = pytest.mark.usefixtures("quick_compile")


@pytest.mark.parametrize("strategy", [LAYER, WHOLE], ids=["layer", "whole"])
def test_the_breaks_of_twelve_layers_are_one_site_with_a_count(strategy: dict[str, str]) -> None:
    found = run(users("quantised"), **strategy)
    assert found.verdict().outcome is Outcome.OK, "measured throughput decides"
    (only,) = found.result.compile.graph_breaks
    assert only.site == line_of("the library's call") and only.count > 1
    assert only.reason == "Skip calling `torch.compiler.disable()`d function"


@pytest.mark.parametrize("strategy", [LAYER, WHOLE], ids=["layer", "whole"])
def test_fullgraph_is_unsupported_by_the_model(strategy: dict[str, str]) -> None:
    verdict = run(users("quantised"), **strategy, fullgraph=True).verdict()
    assert (verdict.outcome, verdict.kind) == (Outcome.GRAPH_BREAK, Kind.UNSUPPORTED_BY_MODEL)
    assert line_of("the library's call") in verdict.detail
