from __future__ import annotations

from typing import Any

import pytest

from strategies.fullgraph import KNOB


def test_means_nothing_with_compile_off(full: Any) -> None:
    assert not KNOB.active(full(mode="off"))
    assert KNOB.active(full(mode="default"))


@pytest.mark.parametrize("value", [False, True])
def test_without_a_break_the_other_value_is_the_same(value: Any, full: Any) -> None:
    assert KNOB.equivalent(full(mode="default", fullgraph=value), {"graph_breaks": 0}) == (not value,)


@pytest.mark.parametrize("facts", [{"graph_breaks": 1}, {"graph_breaks": None}, {}])
def test_with_a_break_or_an_unknown_count_nothing_follows(facts: dict[str, Any], full: Any) -> None:
    assert KNOB.equivalent(full(mode="default"), facts) == ()


def test_nothing_follows_with_compile_off(full: Any) -> None:
    assert KNOB.equivalent(full(), {"graph_breaks": 0}) == ()


def test_apply(build: Any) -> None:
    KNOB.apply(build, True)
    assert build.compile.options == {"fullgraph": True}


def test_a_graph_break_speaks_against_fullgraph_in_its_scope(full: Any) -> None:
    strategy = full(mode="default", scope="layer", fullgraph=True)
    found = KNOB.rules_out(strategy, {"outcome": "graph_break"})
    assert found is not None and found.trials == 2
    assert dict(found.where) == {"fullgraph": (True,), "scope": ("layer",)}
    assert KNOB.rules_out(strategy, {"outcome": "oom"}) is None
    assert KNOB.rules_out(full(mode="default"), {"outcome": "graph_break"}) is None
