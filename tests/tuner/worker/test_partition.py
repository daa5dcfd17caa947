"""The partitioner's plan, on a real joint graph; no code is generated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._functorch import config, partitioners

from tuner.worker.partition import capture_plans

SWAPPED = ("choose_saved_values_set", "create_structured_trace_for_min_cut_info", "AOT_PARTITIONER_DEBUG")


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
