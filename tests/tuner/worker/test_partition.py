"""The partitioner's plan, on a real joint graph; no code is generated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._functorch import config, partitioners

from tuner.worker.partition import capture_plans, same_plan

SWAPPED = (
    "choose_saved_values_set",
    "solve_min_cut",
    "create_structured_trace_for_min_cut_info",
    "AOT_PARTITIONER_DEBUG",
)


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    for name in SWAPPED:
        monkeypatch.setattr(partitioners, name, getattr(partitioners, name))  # put back at the end
    found: list[dict[str, Any]] = []
    capture_plans(found)
    yield found
    torch._dynamo.reset()


def compiled_once(budget: float) -> None:
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 16))
    # Larger than the weights: below that torch ignores the budget without a word.
    rows = torch.randn(512, 16)
    with config.patch(activation_memory_budget=budget):
        torch.compile(model, backend="aot_eager_decomp_partition")(rows).sum().backward()


def test_every_budget_has_its_saved_bytes(plans: list[dict[str, Any]]) -> None:
    for budget in (0.9, 0.5, 0.2):
        compiled_once(budget)
    assert [plan["memory_budget"] for plan in plans] == [0.9, 0.5, 0.2]
    saved = [plan["saved_bytes"] for plan in plans]
    assert saved == sorted(saved, reverse=True)
    assert saved[-1] < saved[0]


def test_the_knapsack_tells_the_edges(plans: list[dict[str, Any]]) -> None:
    compiled_once(0.2)
    (plan,) = plans
    assert plan["max_act_size"] > plan["saved_values_act_size"] > 0
    assert plan["recomputed_nodes"] > 0


def test_what_else_comes_to_the_plan_is_true(plans: list[dict[str, Any]]) -> None:
    for budget in (0.9, 0.7, 0.5, 0.4, 0.3, 0.2, 0.1):
        compiled_once(budget)
    told = [plan for plan in plans if "same_above" in plan]
    assert told, "at least one cut of this graph is no knapsack's"
    for plan in told:
        for other in plans:
            if plan["same_above"] + 1e-6 < other["memory_budget"] <= plan["same_up_to"]:
                assert other["saved_bytes"] == plan["saved_bytes"]


def test_a_budget_that_torch_ignores_is_unchanged(plans: list[dict[str, Any]]) -> None:
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
    with config.patch(activation_memory_budget=0.5):  # a few rows: the weights alone are larger
        torch.compile(model, backend="aot_eager_decomp_partition")(torch.randn(2, 64)).sum().backward()
    assert plans and all(p["unchanged"] and (p["same_above"], p["same_up_to"]) == (0.0, 1.0) for p in plans)


SIZES = {"x": 10, "a": 100, "b": 50, "c": 40}


@pytest.mark.parametrize(
    ("saved", "cuts", "budget", "expected"),
    [
        ("xab", ["xab"], 1.0, {}),  # without a budget there is nothing to tell
        ("x", [], 0.0, {}),
        ("x", ["x"], 0.5, {"unchanged": True, "same_above": 0.0, "same_up_to": 1.0}),
        ("xb", ["xab", "xb"], 0.5, {"unchanged": False, "same_above": 1 / 3, "same_up_to": 1.0}),
        ("xc", ["xab", "xb", "xc"], 0.3, {"unchanged": False, "same_above": 40 / 150, "same_up_to": 1 / 3}),
        ("xb", ["xab", "xb", "xc"], 0.1, {}),  # a knapsack's choice: other budgets may come to another one
    ],
)
def test_the_edges_of_a_plan(saved: str, cuts: list[str], budget: float, expected: dict[str, Any]) -> None:
    found = same_plan(list(saved), [list(cut) for cut in cuts], ["x"], budget, SIZES.__getitem__)
    assert found == pytest.approx(expected)
