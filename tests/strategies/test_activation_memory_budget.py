from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._functorch.config as functorch_config
from torch import nn

from strategies.activation_memory_budget import KNOB
from strategies.knob import Severity


@pytest.fixture
def severity(full: Any, cuda: Any) -> Any:
    def of(value: Any, dropout: float = 0.0, untested: bool = True, **values: Any) -> Any:
        strategy = full(**({"mode": "default"} | values), activation_memory_budget=value)
        conflict = KNOB.conflict(strategy, cuda(dropout=dropout, untested_dropout=untested))
        return conflict and conflict.severity

    return of


@pytest.fixture(autouse=True)
def torchs_own_value_returns() -> Any:
    with functorch_config.patch(activation_memory_budget=functorch_config.activation_memory_budget):
        yield


def test_means_nothing_with_compile_off(full: Any) -> None:
    assert not KNOB.active(full(mode="off"))
    assert KNOB.active(full(mode="default"))


@pytest.mark.parametrize("value", [v for v in KNOB.values if v < 1])
@pytest.mark.parametrize("checkpointing", ["every-block", "every-second-block"])
def test_beside_checkpointing(value: Any, checkpointing: str, severity: Any) -> None:
    def of(scope: str) -> Any:
        return severity(value, checkpointing=checkpointing, scope=scope)

    assert [of("whole"), of("layer")] == [Severity.POINTLESS] * 2
    assert [of("attention"), of("mlp")] == [Severity.IMPOSSIBLE] * 2


def test_the_smallest_two_are_pointless_over_the_whole_model(severity: Any) -> None:
    legal = [value for value in KNOB.values if severity(value, scope="whole") is None]
    assert legal == [1.0, 0.9, 0.7, 0.5, 0.4, 0.3, 0.2]


@pytest.mark.parametrize("scope", ["layer", "attention", "mlp"])
def test_all_are_legal_over_less(scope: str, severity: Any) -> None:
    assert [severity(value, scope=scope) for value in KNOB.values] == [None] * 9


def test_untested_dropout_forbids_what_makes_gradients_wrong(
    conflict: Any, severity: Any, full: Any, cuda: Any
) -> None:
    legal = [value for value in KNOB.values if severity(value, dropout=0.05, scope="layer") is None]
    assert legal == [1.0, 0.9, 0.7, 0.5]
    assert severity(0.4, dropout=0.05, scope="layer") is Severity.IMPOSSIBLE
    found = conflict(KNOB, full(mode="default", activation_memory_budget=0.0), cuda(dropout=0.1, untested_dropout=True))
    assert "#190717" in found.reason


def test_the_twin_test_decides_where_there_is_one(severity: Any) -> None:
    assert [severity(value, dropout=0.05, untested=False, scope="layer") for value in KNOB.values] == [None] * 9


def test_every_value_but_one_recomputes() -> None:
    assert [value for value in KNOB.values if not KNOB.recomputes(value)] == [1.0]


def test_wrong_gradients_come_before_what_is_only_pointless(severity: Any) -> None:
    assert severity(0.0, dropout=0.1, scope="whole") is Severity.IMPOSSIBLE
    assert severity(0.4, dropout=0.1, scope="layer", checkpointing="every-block") is Severity.IMPOSSIBLE


@pytest.mark.parametrize("value", KNOB.values)
def test_apply_always_sets_torchs_config(value: Any, build: Any) -> None:
    functorch_config.activation_memory_budget = 0.123
    KNOB.apply(build, value)
    assert functorch_config.activation_memory_budget == value


class Stack(nn.Module):
    """A class of our own: dynamo passes over a bare `nn.Sequential`."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList()
        for _ in range(2):
            self.parts.extend([nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = part(x)
        return x


def _bytes_kept(value: Any, build: Any) -> int:
    torch._dynamo.reset()
    KNOB.apply(build, value)
    stack, kept = Stack(), {}
    stack.compile(backend="aot_eager_decomp_partition")

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        stack(torch.randn(1024, 64, requires_grad=True))
    return sum(kept.values())


def test_torch_keeps_less_for_a_smaller_value(build: Any) -> None:
    everything, half, nothing = (_bytes_kept(value, build) for value in (1.0, 0.5, 0.0))
    assert nothing < half < everything


def test_values_with_the_same_plan_are_equivalent(full: Any) -> None:
    strategy = full(mode="default", activation_memory_budget=0.9)

    def same(*regions: dict[str, Any], complete: bool = True) -> tuple[Any, ...]:
        plan = {"regions": regions, "complete": complete}
        return KNOB.equivalent(strategy, {"plan": plan})

    wide = {"unchanged": False, "same_above": 0.35, "same_up_to": 1.0}
    assert same(wide) == (0.7, 0.5, 0.4), "1 is no budget at all, and saves more"
    assert same(wide, wide | {"same_above": 0.5}) == (0.7,)
    assert same(wide | {"unchanged": True}) == (1.0, 0.7, 0.5, 0.4)
    assert same(wide, complete=False) == same(wide, {}) == same() == ()
    assert KNOB.equivalent(strategy, {"plan": None}) == ()
