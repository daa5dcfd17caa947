"""Gradients that are allocated once and zeroed in place, as CUDA graphs with accumulation need them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def preallocate_gradients(params: list[Any]) -> None:
    """Give every parameter a gradient of zeros."""
    # With `.grad` unset the first backward hands out a tensor that lives in the graph's pool, and
    # the next replay overwrites it (pytorch cudagraph_trees; measured in studies/records).
    import torch

    for param in params:
        param.grad = torch.zeros_like(param)


def zero_in_place(optimizer: torch.optim.Optimizer) -> None:
    """Make `optimizer` zero gradients and never drop them."""
    # Whoever calls it, and however: dropping a gradient would undo the preallocation.
    original = optimizer.zero_grad

    def zero_grad(set_to_none: bool = False) -> None:
        original(set_to_none=False)

    optimizer.zero_grad = zero_grad  # type: ignore[method-assign]
