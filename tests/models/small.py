"""Models of a few thousand parameters, and the losses and batches of a user's own."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH = 8


class Attention(nn.Module):
    """Not attention, but named and placed like one."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        projected: torch.Tensor = self.proj(x)
        return projected.tanh()


class Block(nn.Module):
    """A decoder layer in shape."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = Attention()
        self.attn_norm = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.attn_norm(x))
        out: torch.Tensor = x + self.mlp(x)
        return out


class Branching(Block):
    """Breaks the graph where dynamo's counters do not see it: a branch on data."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x + self.attn(x)
        if h.mean() > 0:  # the break's line
            h = h * 2
        out: torch.Tensor = h + self.mlp(h)
        return out


class Disabled(Block):
    """Asks dynamo to leave it alone."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


class Stack(nn.Module):
    """Embedding, blocks and head; no Hugging Face model, but with a `config`, as nanoGPT has one."""

    def __init__(self, block: type[Block] = Block, layers: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.config = {"layers": layers}
        self.embed = nn.Embedding(32, WIDTH)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(block() for _ in range(layers))
        self.head = nn.Linear(WIDTH, 32)

    def forward(
        self, input_ids: torch.Tensor, labels: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        x = self.drop(self.embed(input_ids))
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)[:, :-1]
        loss = nn.functional.cross_entropy(logits.reshape(-1, 32), labels[:, 1:].reshape(-1), ignore_index=-100)
        return {"loss": loss, "logits": logits}


def stack() -> nn.Module:
    """A model as a user's function returns it."""
    return Stack()


class SavesPart(Stack):
    """Saves only what is trained, by a `state_dict` that takes no arguments."""

    def state_dict(self) -> dict[str, torch.Tensor]:  # type: ignore[override]
        return {name: p.detach() for name, p in self.named_parameters() if p.requires_grad}


def saves_part() -> nn.Module:
    """A model with a frozen embedding that it does not save."""
    model = SavesPart()
    model.embed.requires_grad_(False)
    return model


class Masking(Stack):
    """Makes a persistent buffer in its first forward, lets another grow, and drops a third."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(1))
        self.register_buffer("seed", torch.zeros(1))

    def forward(self, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        if not hasattr(self, "mask"):
            self.register_buffer("mask", torch.ones(input_ids.shape[1]))
            self.cache = torch.zeros(input_ids.shape[1])
            del self.seed
        return super().forward(input_ids, *args, **kwargs)


def masking() -> nn.Module:
    """A model whose buffers come about in the first forward."""
    return Masking()


CALLS: list[int] = []


def counted() -> nn.Module:
    """A model whose function tells each call to `CALLS` of its own module."""
    CALLS.append(len(CALLS))
    return Stack()


def with_dropout() -> nn.Module:
    """The same with a dropout layer of 0.5."""
    return Stack(dropout=0.5)


def trapped() -> nn.Module:
    """Checkpointing as many write it: `functools.partial` is the outermost frame, and dynamo skips the layer."""
    model = Stack()
    for block in model.blocks:
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    return model


def half_trapped() -> nn.Module:
    """The first layer splits into two graphs, the second is skipped: two regions for two layers."""
    model = Stack(Branching)
    model.blocks[1].forward = functools.partial(checkpoint, model.blocks[1].forward, use_reentrant=False)
    return model


def without_gradient() -> nn.Module:
    """Its loss hangs on nothing that it trains."""

    class Detached(Stack):
        def forward(self, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
            return {"loss": super().forward(*args, **kwargs)["loss"].detach()}

    return Detached()


def without_effect() -> nn.Module:
    """Its gradients are all zero."""

    class Zero(Stack):
        def forward(self, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
            return {"loss": super().forward(*args, **kwargs)["loss"] * 0.0}

    return Zero()


def not_a_number() -> nn.Module:
    """Its loss is NaN."""

    class NotANumber(Stack):
        def forward(self, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
            return {"loss": super().forward(*args, **kwargs)["loss"] * float("nan")}

    return NotANumber()


def raises() -> nn.Module:
    """A user's mistake."""
    raise KeyError("no such\nkey")


def leaves() -> nn.Module:
    """A script that ends the process."""
    raise SystemExit(3)


def returns_none() -> None:
    """A function that forgot its return."""


NOT_CALLABLE = 3


def mean_loss(model: nn.Module, batch: dict[str, Any]) -> torch.Tensor:
    """A loss of the user's own."""
    loss: torch.Tensor = model(**batch)["loss"]
    return loss


def loss_of_each(model: nn.Module, batch: dict[str, Any]) -> torch.Tensor:
    """Not one number."""
    return mean_loss(model, batch).repeat(3)


def raising_loss(model: nn.Module, batch: dict[str, Any]) -> torch.Tensor:
    """A user's mistake in a loss."""
    loss: torch.Tensor = batch["lables"]
    return loss


def refused_loss(model: nn.Module, batch: dict[str, Any]) -> torch.Tensor:
    """What a device says, and no mistake of the user's."""
    raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")


def ones(device: torch.device, micro_batch: int, length: int) -> dict[str, torch.Tensor]:
    """A batch of the user's own."""
    ids = torch.ones(micro_batch, length, dtype=torch.long, device=device)
    return {"input_ids": ids, "labels": ids}


def self_seeded(device: torch.device, sequences: int, length: int) -> dict[str, Any]:
    """Draws from the global generators and from one that it seeds anew at each call, as many do."""
    own = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 32, (sequences, length), generator=own)
    ids[:, 0] = torch.tensor([random.randrange(32) for _ in range(sequences)])
    ids[:, 1] = torch.from_numpy(numpy.random.randint(0, 32, sequences))
    ids[:, 2] = torch.randint(0, 32, (sequences,))
    return {"input_ids": ids.to(device), "labels": ids.to(device), "attention_mask": None}


def packed(device: torch.device, sequences: int, length: int) -> dict[str, torch.Tensor]:
    """All sequences in one row."""
    return ones(device, 1, sequences * length)


def no_batch(device: torch.device, micro_batch: int, length: int) -> list[int]:
    """Not a dict."""
    return [micro_batch, length]
