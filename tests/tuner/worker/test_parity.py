"""The sample of the first step's gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from tests.models.small import Stack
from tuner.worker.parity import SAMPLED_ELEMENTS, SAMPLED_TENSORS, ParityProbe


def probe_of(model: nn.Module, gradient: float | None = None) -> ParityProbe:
    probe = ParityProbe(model)
    if gradient is not None:
        for param in model.parameters():
            param.grad = torch.full_like(param, gradient)
    probe.take()
    return probe


def test_the_sample_is_bounded_and_spread() -> None:
    model = nn.ModuleList(nn.Linear(100, 100) for _ in range(20))
    probe = ParityProbe(model)
    for number, layer in enumerate(model):
        layer.weight.grad = torch.full_like(layer.weight, float(number))  # type: ignore[arg-type]
    probe.take()
    parity = probe.finish(1.0)
    assert len(parity.gradient) <= SAMPLED_TENSORS * SAMPLED_ELEMENTS
    assert len(set(parity.gradient)) > 5  # of many tensors, not of the first ones alone


def test_the_sample_is_the_same_for_the_same_model() -> None:
    torch.manual_seed(0)
    first = probe_of(Stack(), 0.5).finish(2.0)
    torch.manual_seed(0)
    assert probe_of(Stack(), 0.5).finish(2.0) == first


def test_a_small_change_is_seen() -> None:
    model = Stack()
    probe = ParityProbe(model)
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    grad = model.embed.weight.grad
    assert grad is not None
    grad[0, 0] = 2.0
    probe.take()
    assert sorted(set(probe.finish(1.0).gradient)) == [1.0, 2.0]


def test_the_norm_is_of_the_whole_gradient() -> None:
    model = Stack()
    count = sum(p.numel() for p in model.parameters())
    assert probe_of(model, 0.5).finish(1.0).gradient_norm == pytest.approx(0.5 * math.sqrt(count))


def test_without_gradients() -> None:
    model = Stack()
    parity = probe_of(model).finish(1.0)
    assert parity.gradient_norm == 0
    assert parity.tensors_without_gradient == len(list(model.parameters()))
    assert set(parity.gradient) == {0.0}


def test_frozen_parameters_do_not_count() -> None:
    model = Stack()
    model.embed.weight.requires_grad_(False)
    parity = probe_of(model).finish(1.0)
    assert parity.tensors_without_gradient == len(list(model.parameters())) - 1


def test_a_changed_parameter() -> None:
    model = Stack()
    probe = probe_of(model, 1.0)
    assert not probe.finish(1.0).parameter_changed
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert probe.finish(1.0).parameter_changed


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_passes_no_comparison(bad: float) -> None:
    parity = probe_of(Stack(), bad).finish(bad)
    assert parity.loss == parity.gradient_norm == 1e308
    assert set(parity.gradient) == {1e308}


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_figures_under_dropout_say_so(dropout: float) -> None:
    assert probe_of(Stack(dropout=dropout), gradient=1.0).finish(1.0).with_dropout is (dropout > 0)
