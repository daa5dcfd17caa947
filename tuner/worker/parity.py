"""Loss and a fixed sample of the gradient of the first full batch, and whether a parameter changed."""

from __future__ import annotations

import math

import torch
from torch import nn

from tuner.measured import Parity
from tuner.mismatch import active_dropout

SAMPLED_TENSORS = 16
SAMPLED_ELEMENTS = 256
"""Of each tensor: 4,096 elements in all, 16 KiB on the device."""


FIRST_LOSSES = 4
"""Optimizer steps whose losses are kept, the first included."""


class ParityProbe:
    """Samples the gradient between the last backward and the optimizer step of the first step.

    The sample is the same for every strategy: trainable tensors in the order of their names, evenly
    spaced, and evenly spaced elements of each.
    """

    def __init__(self, model: nn.Module) -> None:
        named = sorted((n, p) for n, p in model.named_parameters() if p.requires_grad)
        self._trainable = [p for _, p in named]
        count = min(SAMPLED_TENSORS, len(named))
        self._sampled = [named[round(i * (len(named) - 1) / max(1, count - 1))][1] for i in range(count)]
        # On the host: nothing of it lies on the device while the step has its peak.
        self._before = torch.cat([_sample(p) for p in self._sampled]).cpu()
        self._gradient = torch.empty(0)
        self._norm = float("nan")
        self._without = 0
        # Masks depend on how the step is cut and compiled, so such figures cannot be compared.
        self._with_dropout = active_dropout(model) > 0

    def take(self) -> None:
        """Read the gradients. Called once, with unscaled gradients in place."""
        with torch.no_grad():
            self._without = sum(p.grad is None for p in self._trainable)
            taken = [_sample(p.grad) if p.grad is not None else _zeros(p) for p in self._sampled]
            self._gradient = torch.cat(taken).cpu()
            found = [p.grad for p in self._trainable if p.grad is not None]
            norms = [torch.linalg.vector_norm(gradient, dtype=torch.float32) for gradient in found]
            self._norm = float(torch.linalg.vector_norm(torch.stack(norms))) if norms else 0.0

    def finish(self, loss: float) -> Parity:
        """Return what was read; `loss` is the mean over the step's trained tokens. Called after the optimizer step."""
        after = torch.cat([_sample(p) for p in self._sampled]).cpu()
        return Parity(
            loss=_json_number(loss),
            losses=(_json_number(loss),),
            gradient=tuple(_json_number(v) for v in self._gradient.float().tolist()),
            gradient_sizes=tuple(min(SAMPLED_ELEMENTS, p.numel()) for p in self._sampled),
            gradient_norm=_json_number(self._norm),
            tensors_without_gradient=self._without,
            parameter_changed=bool((after != self._before).any()),
            with_dropout=self._with_dropout,
        )


def with_loss(parity: Parity, loss: float) -> Parity:
    """Return `parity` with the loss of one more step."""
    return parity.model_copy(update={"losses": (*parity.losses, _json_number(loss))})


def _positions(tensor: torch.Tensor) -> torch.Tensor:
    count = min(SAMPLED_ELEMENTS, tensor.numel())
    return torch.linspace(0, tensor.numel() - 1, count, dtype=torch.float64).round().long().to(tensor.device)


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1)[_positions(tensor)].float()


def _zeros(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros(min(SAMPLED_ELEMENTS, tensor.numel()), device=tensor.device)


def _json_number(value: float) -> float:
    # JSON has no NaN; the largest float stands for "not finite" and no comparison passes it.
    return value if math.isfinite(value) else float("1e308")
