"""CUDA graphs with gradient accumulation: wrong or refused without preallocated gradients, right with them."""

from __future__ import annotations

import os

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from torch import nn

from tests.tuner.worker.workloads import shaped
from tuner.build import Applied, Plan, apply
from tuner.worker.data import Batches, Loss
from tuner.worker.load import load_model
from tuner.workload import Adapter, Lengths, Precision, Workload

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a card"),
]
STEPS = 5
"""A graph is recorded on the second call and replayed from the third on."""


def workload_of(adapter: Adapter) -> Workload:
    return shaped(
        config={"hidden_size": 256, "intermediate_size": 512, "vocab_size": 1024, "num_attention_heads": 4},
        adapter=adapter,
        precision=Precision.BF16_TRUE,
        lengths=Lengths.fixed(64),
    )


def trained(workload: Workload, strategy: dict[str, str], preallocate: bool = True) -> tuple[Applied, list[float]]:
    """Train some steps of eight micro-batches; return the total gradient norm of each step."""
    torch._dynamo.reset()
    device = torch.device("cuda", 0)
    model = load_model(workload, device, seed=0)
    applied = apply(model, Plan(strategy=strategy, workload=workload))
    if not preallocate:
        _drop_preallocation(applied)
    batches, loss_of = Batches(workload, model, device, applied.micro_batch, 0), Loss(workload, model)
    norms: list[float] = []

    def keep() -> None:
        gradients = [p.grad.float() for p in model.parameters() if p.grad is not None]
        norms.append(float(torch.stack([g.norm() for g in gradients]).norm()))

    for index in range(STEPS):
        with applied.step() as step:
            step.before_update = keep
            for micro_batch in batches.step(index).micro_batches:
                with applied.forward():
                    loss = loss_of(micro_batch)
                step.backward(loss)
    return applied, norms


def _drop_preallocation(applied: Applied) -> None:
    # What a training loop does that knows nothing of it: gradients are born in the first backward.
    applied.keep_gradients = False
    vars(applied.optimizer).pop("zero_grad")
    applied.optimizer.zero_grad(set_to_none=True)


def close(norms: list[float], wanted: list[float]) -> bool:
    """Within 2 %: eager against eager differs by up to 1.6 % in 16 bits."""
    return norms == pytest.approx(wanted, rel=0.02)


@pytest.mark.parametrize("adapter", [Adapter.FULL, Adapter.LORA])
@pytest.mark.parametrize("scope", ["layer", "whole"])
def test_graphs_with_accumulation(adapter: Adapter, scope: str) -> None:
    workload = workload_of(adapter)
    graphs = {"mode": "reduce-overhead", "scope": scope}
    _, eager = trained(workload, {})
    applied, norms = trained(workload, graphs)
    assert applied.accumulation == 8 and applied.keep_gradients and applied.records_graphs
    assert close(norms, eager)
    assert _recorded() > 0  # or nothing was shown

    try:
        _, without = trained(workload, graphs, preallocate=False)
    except RuntimeError as error:
        assert "overwritten" in str(error)
    else:
        assert not close(without, eager)


def _recorded() -> int:
    from tuner.worker.health import _recorded_graphs

    return _recorded_graphs()


def test_without_accumulation_nothing_is_preallocated() -> None:
    workload = workload_of(Adapter.FULL)
    _, eager = trained(workload, {"micro_batch": 8})  # type: ignore[dict-item]
    applied, norms = trained(workload, {"mode": "reduce-overhead", "scope": "layer", "micro_batch": 8})  # type: ignore[dict-item]
    assert not applied.keep_gradients
    assert close(norms, eager)
    assert all(p.grad is None for p in _parameters(applied.model))


def _parameters(model: nn.Module) -> list[nn.Parameter]:
    return list(model.parameters())
