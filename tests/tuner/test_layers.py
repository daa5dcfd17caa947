"""Decoder layers, and the modules that a scope names."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from tests.models.small import Attention, Block, Stack
from tests.tuner.test_build import ATTENTION, CPU, MLP, MOE, applied_to, as_before
from tests.tuner.worker.workloads import shaped
from tuner.build import BuildConflict, decoder_layers, scope_modules
from tuner.worker.load import load_model
from tuner.workload import Adapter

__all__ = ["as_before"]


@pytest.mark.parametrize(
    ("shape", "config"), [("tiny", {}), ("qwen-1.5b", {}), ("mistral-7b", {}), ("olmoe-1b-7b", MOE)]
)
def test_scopes_of_every_shape(shape: str, config: dict[str, Any]) -> None:
    model = load_model(shaped(shape, config), CPU, 0)
    layers = decoder_layers(model)
    assert [type(layer).__name__.endswith("DecoderLayer") for layer in layers] == [True, True]
    assert scope_modules(model, "whole") == [model]
    assert scope_modules(model, "layer") == layers
    assert all(type(m).__name__ in ATTENTION for m in scope_modules(model, "attention"))
    assert all(type(m).__name__ in MLP for m in scope_modules(model, "mlp"))
    assert len(scope_modules(model, "attention")) == len(scope_modules(model, "mlp")) == 2


def test_scopes_of_a_plain_module() -> None:
    model = Stack()
    assert [type(m) for m in scope_modules(model, "layer")] == [Block, Block]
    # `attn_norm` has the word in its name too, and is no attention.
    assert [type(m) for m in scope_modules(model, "attention")] == [Attention, Attention]
    assert [type(m) for m in scope_modules(model, "mlp")] == [nn.Sequential, nn.Sequential]


def test_layers_under_adapters() -> None:
    model = load_model(shaped(adapter=Adapter.LORA), CPU, 0)
    assert [type(layer).__name__ for layer in decoder_layers(model)] == ["LlamaDecoderLayer"] * 2
    assert len(scope_modules(model, "mlp")) == 2


def test_layers_in_a_sequential() -> None:
    class Sequential(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.Sequential(Block(), Block(), Block())

    assert len(decoder_layers(Sequential())) == 3


def test_no_layers_is_a_conflict() -> None:
    with pytest.raises(BuildConflict, match="the model Linear has no list of decoder layers"):
        applied_to(nn.Linear(4, 4), mode="default", scope="layer")


def test_no_such_part_is_a_conflict() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.TransformerEncoderLayer(8, 2), nn.TransformerEncoderLayer(8, 2)])

    with pytest.raises(BuildConflict, match="scope mlp: the layers of class TransformerEncoderLayer"):
        scope_modules(Odd(), "mlp")
