"""User models that carry the faults of the reports; a few thousand parameters each."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH, VOCABULARY = 8, 32
ALLOCATOR_SAYS = "[W alloc.cpp] the device could not get another 640 MB block; 0.1 GiB are free, 23.4 GiB are reserved"


class Block(nn.Module):
    """A decoder layer in shape: norm, mlp, residual."""

    def __init__(self, index: int = 0, width: int = WIDTH) -> None:
        super().__init__()
        self.layer_idx = index
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.mlp(self.norm(x))
        return out


class Model(nn.Module):
    """Embedding, layers and head."""

    def __init__(self, block: Callable[[int], nn.Module] = Block, layers: int = 2, width: int = WIDTH) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(block(index) for index in range(layers))
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def run_layers(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    def forward(
        self, input_ids: torch.Tensor, labels: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        logits = self.head(self.run_layers(self.embed(input_ids)))[:, :-1]
        targets = labels[:, 1:].reshape(-1)
        return {"loss": nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), targets, ignore_index=-100)}


def plain() -> nn.Module:
    """Nothing is wrong with it."""
    return Model()


def deep() -> nn.Module:
    """Twelve equal layers."""
    return Model(layers=12)


# Integer attributes


class Indexed(Block):
    """Reads its own index, as a layer with a cache does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x * (1 + self.layer_idx / 100))


class Counting(Block):
    """Counts its calls, and does something else in every third."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x * 1.01 if self.calls % 3 == 0 else x)


def indexed() -> nn.Module:
    """More layers than dynamo's recompile limit."""
    return Model(Indexed, layers=14)


def counting() -> nn.Module:
    """One compile a step."""
    return Model(Counting, layers=1)


# Data-dependent control flow


class Masked(Block):
    """Looks at the values of a tensor before it decides."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        if h.mean() > 0:  # the branch
            h = h * 2
        out: torch.Tensor = x + self.mlp(h)
        return out


class Routed(Block):
    """Top-1 router that lists the tokens of each expert and splits by them."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.router = nn.Linear(WIDTH, 2)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, WIDTH)
        weight, expert = self.router(rows).softmax(-1).max(-1)
        order = expert.argsort(stable=True)
        counts = torch.bincount(expert, minlength=2).tolist()  # the list
        parts = rows[order].split(counts)
        done = torch.cat([layer(part) for layer, part in zip(self.experts, parts, strict=True)])
        back = torch.zeros_like(rows).index_copy(0, order, done)
        return super().forward(x + (back * weight[:, None]).reshape(x.shape))


def masked() -> nn.Module:
    """A branch in each layer."""
    return Model(Masked)


def routed() -> nn.Module:
    """A mixture of experts."""
    return Model(Routed)


# Quantised linears under LoRA


class QuantisedState:
    """What a library keeps beside its packed weights."""

    def __init__(self, scale: float) -> None:
        self.scale = scale


@torch.compiler.disable
def dequantise(packed: torch.Tensor, state: QuantisedState, dtype: torch.dtype) -> torch.Tensor:
    """A kernel that dynamo cannot look into."""
    return packed.to(dtype) * state.scale


class QuantisedLinear(nn.Module):
    """An int8 weight with a state of plain Python, and adapters."""

    packed: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("packed", torch.randint(-9, 9, (WIDTH, WIDTH), dtype=torch.int8))
        self.quant_state = QuantisedState(0.01)
        self.compute_dtype: torch.dtype | None = None
        self.a = nn.Parameter(torch.randn(2, WIDTH) * 0.1)
        self.b = nn.Parameter(torch.randn(WIDTH, 2) * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.compute_dtype is None:
            self.compute_dtype = x.dtype
        weight = dequantise(self.packed, self.quant_state, self.compute_dtype)  # the library's call
        return x @ weight.T + x @ self.a.T @ self.b.T


class QuantisedBlock(nn.Module):
    """A layer with one such linear."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mlp = QuantisedLinear()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.mlp(self.norm(x)).tanh()
        return out


def quantised() -> nn.Module:
    """Twelve such layers."""
    return Model(QuantisedBlock, layers=12)


# Checkpointing of the user's own, and recomputations that differ


class OwnCheckpointing(Model):
    """Adapters over a frozen base, each layer checkpointed by the model itself."""

    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.use_reentrant = use_reentrant
        self.embed.requires_grad_(False)
        self.head.requires_grad_(False)

    def run_layers(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=self.use_reentrant)
        return x


def reentrant() -> nn.Module:
    """With the variant that needs an input with a gradient."""
    return OwnCheckpointing(use_reentrant=True)


def non_reentrant() -> nn.Module:
    """With the variant that does not."""
    return OwnCheckpointing(use_reentrant=False)


def frozen_base() -> nn.Module:
    """Adapters over a frozen base, no checkpointing of its own."""
    model = Model()
    model.embed.requires_grad_(False)
    model.head.requires_grad_(False)
    return model


class Detached(Model):
    """Cuts its own loss off."""

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        return {"loss": super().forward(*args, **kwargs)["loss"].detach()}


def detached() -> nn.Module:
    """Nothing is trained, whatever is on."""
    return Detached()


class Changing(Block):
    """Saves one more tensor in its first execution than in its second, and so on."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x.sin() if self.calls % 2 else x)


def changing() -> nn.Module:
    """Its recomputation is another computation."""
    return Model(Changing)


# Compile switches that do nothing


class Disabled(Block):
    """Asks dynamo to leave it alone."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


class Bypassing(Model):
    """Keeps the functions that it had before anything was compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = [layer.forward for layer in self.layers]

    def run_layers(self, x: torch.Tensor) -> torch.Tensor:
        for forward in self.kept:
            x = forward(x)
        return x


def disabled() -> nn.Module:
    """No layer may be compiled."""
    return Model(Disabled)


def bypassing() -> nn.Module:
    """No compiled layer is called."""
    return Bypassing()


# Numerics


class Compiled(Block):
    """Is multiplied by `factor` where it is compiled, and only there."""

    def __init__(self, index: int, factor: float) -> None:
        super().__init__(index)
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)
        return x * self.factor if torch.compiler.is_compiling() else x


def nan_when_compiled() -> nn.Module:
    """Right in eager."""
    return Model(partial(Compiled, factor=float("nan")))


def worse_when_compiled() -> nn.Module:
    """Nearly right when compiled."""
    return Model(partial(Compiled, factor=1.2))


class Late(Block):
    """Is multiplied by `factor` from its call number `since` on, counted from 0; where `compiled`, only when it is."""

    def __init__(self, index: int, factor: float, since: int, compiled: bool) -> None:
        super().__init__(index)
        self.factor, self.since, self.compiled = factor, since, compiled
        self.register_buffer("calls", torch.zeros((), dtype=torch.long), persistent=False)
        self.calls: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)
        if self.compiled and not torch.compiler.is_compiling():
            return x
        x = x * torch.where(self.calls >= self.since, self.factor, 1.0)
        self.calls.add_(1)
        return x


def worse_from_the_second_step() -> nn.Module:
    """When compiled: the first step, which is compared tensor by tensor, is right."""
    return Model(partial(Late, factor=3.0, since=1, compiled=True))


def nan_from_the_third_step() -> nn.Module:
    """Compiled or not."""
    return Model(partial(Late, factor=float("nan"), since=2, compiled=False))


class Dropping(Block):
    """With dropout."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.drop(x))


def dropping() -> nn.Module:
    """Healthy, and never twice the same."""
    return Model(Dropping)


# Saving


def tied() -> nn.Module:
    """Embedding and head are one tensor."""
    model = Model()
    model.head.weight = model.embed.weight
    return model


# The 8-bit optimizer


def small_tensors() -> nn.Module:
    """Every tensor has fewer than 4,096 elements."""
    return Model(partial(Block, width=48), layers=20, width=48)


def large_tensors() -> nn.Module:
    """Nearly all is in tensors that 8 bits are for."""
    return Model(partial(Block, width=256), layers=2, width=256)


# Out of memory that is not an OutOfMemoryError


class Refused(Model):
    """In its fourth forward a launch is refused, as generated code says it; `warns`: the allocator says why."""

    def __init__(self, warns: bool) -> None:
        super().__init__()
        self.warns, self.calls = warns, 0

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        self.calls += 1
        if self.calls == 4:
            if self.warns:
                print(ALLOCATOR_SAYS, file=sys.stderr)
            raise RuntimeError("API call failed at wrapper line 1024")
        return super().forward(*args, **kwargs)


def refused() -> nn.Module:
    """Only the log tells."""
    return Refused(warns=True)


def failing() -> nn.Module:
    """Nothing tells of memory."""
    return Refused(warns=False)
