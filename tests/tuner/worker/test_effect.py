"""Which knobs changed nothing, as the worker sees it (`test_main` has the optimizer and the graphs)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tuner.worker.workloads import measurement, shaped
from tuner.worker.effect import no_effect
from tuner.worker.health import CompileHealth

IGNORED = {"memory_budget": 0.5, "unchanged": True}
BINDING = {"memory_budget": 0.5, "unchanged": False}


def found(regions: list[dict[str, Any]], budget: float = 0.5) -> dict[str, str]:
    made = measurement(shaped(), mode="default", scope="layer", activation_memory_budget=budget)
    made.health = CompileHealth(enabled=True, wants_plan=False)
    made.health.close()
    made.health._plans += regions
    return no_effect(made, whole=True)


def test_a_budget_that_torch_ignores_in_every_region_is_named() -> None:
    why = "activation_memory_budget: with 0.5 torch saves exactly what it saves without a budget"
    assert found([IGNORED, IGNORED]) == {"activation_memory_budget": why}


@pytest.mark.parametrize("regions", [[IGNORED, BINDING], [BINDING], [{"memory_budget": 0.5}], []])
def test_one_that_binds_somewhere_or_cannot_be_told_is_not(regions: list[dict[str, Any]]) -> None:
    assert found(regions) == {}


def test_without_a_budget_there_is_nothing_to_ignore() -> None:
    assert found([IGNORED], budget=1.0) == {}
