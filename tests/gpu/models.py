"""Models, losses and batches of the field reports that need a card; a user's own code, as the worker loads it."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

TINY = os.environ.get("GPU_TINY") == "1"
"""Small enough for a CPU."""
WIDTH = 32 if TINY else 2048
BLOCKS = 4 if TINY else 24
VOCABULARY = 512 if TINY else 131072
HEAD_WIDTH = 32 if TINY else 1024


class Block(nn.Module):
    """Linear, norm, GELU: the layer of report D1."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(self.norm(self.linear(x)))


class Stack(nn.Module):
    """24 of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(BLOCKS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Head(nn.Module):
    """One product with 131,072 columns: what report D3 autotunes."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(HEAD_WIDTH, VOCABULARY, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(x)
        return out


class Square(nn.Module):
    """A decoder layer of one linear layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.mlp(x)
        return out


class Squares(nn.Module):
    """So many of them."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Square(width) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def stack() -> nn.Module:
    """The model of D1."""
    return Stack()


def head() -> nn.Module:
    """The model of D3."""
    return Head()


def small_tensors() -> nn.Module:
    """300 tensors of 48 times 48, each below the 4,096 elements from which bitsandbytes uses 8 bits."""
    return Squares(20 if TINY else 300, 48)


def large_tensors() -> nn.Module:
    """4 tensors of 2048 times 2048."""
    return Squares(4, 128 if TINY else 2048)


def rows(device: torch.device, sequences: int, length: int) -> dict[str, Any]:
    """Random rows of the width of D1."""
    return {"x": torch.randn(sequences, length, WIDTH, device=device)}


def head_rows(device: torch.device, sequences: int, length: int) -> dict[str, Any]:
    """Random rows and targets for D3."""
    x = torch.randn(sequences, length, HEAD_WIDTH, device=device)
    return {"x": x, "target": torch.randint(0, VOCABULARY, (sequences, length), device=device)}


def narrow_rows(device: torch.device, sequences: int, length: int) -> dict[str, Any]:
    """For the small tensors of D7."""
    return {"x": torch.randn(sequences, length, 48, device=device)}


def wide_rows(device: torch.device, sequences: int, length: int) -> dict[str, Any]:
    """For the large tensors of D7."""
    return {"x": torch.randn(sequences, length, 128 if TINY else 2048, device=device)}


def square_loss(model: nn.Module, batch: dict[str, Any]) -> torch.Tensor:
    """Mean square of what comes out, in 32 bits."""
    dtype = next(model.parameters()).dtype
    out: torch.Tensor = model(batch["x"].to(dtype)).float().square().mean()
    return out


def target_loss(model: nn.Module, batch: dict[str, Any]) -> torch.Tensor:
    """Cross entropy over the vocabulary."""
    dtype = next(model.parameters()).dtype
    logits = model(batch["x"].to(dtype)).flatten(0, 1)
    return nn.functional.cross_entropy(logits, batch["target"].flatten())
