"""What is trained: the part of a run that the user fixes and a search never changes."""

from __future__ import annotations

import hashlib
import json
import math
import random
from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

EVAL_BATCH_SIZE = 8
"""Sequences of an evaluation's forward unless said: the Trainer's ``per_device_eval_batch_size``."""


class Frozen(BaseModel):
    """Base of every record that travels or is stored: immutable, unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelKind(StrEnum):
    """Where the model comes from."""

    SHAPE = "shape"
    """A built-in shape by name; random weights."""
    FOLDER = "folder"
    """A folder with a ``config.json``, with or without weights."""
    HUB = "hub"
    """A hub id, loaded by transformers."""
    FUNCTION = "function"
    """``package.module:function`` or ``file.py:function`` that returns a `torch.nn.Module`."""


class Adapter(StrEnum):
    """Which parameters are trained."""

    FULL = "full"
    LORA = "lora"
    QLORA = "qlora"


class Precision(StrEnum):
    """Lightning's names. ``mixed``: under autocast, with fp32 trainable parameters."""

    BF16_TRUE = "bf16-true"
    BF16_MIXED = "bf16-mixed"
    FP16_MIXED = "fp16-mixed"
    FP32_TRUE = "32-true"


class Lengths(Frozen):
    """The distribution of sequence lengths, in tokens."""

    kind: Literal["fixed", "lognormal", "list"]
    max: int = Field(ge=2)
    """The longest sequence; for ``fixed`` the length of all."""
    mean: float | None = None
    """Of the lognormal distribution, before lengths above `max` are cut to `max`."""
    sigma: float | None = None
    """Standard deviation of the logarithm, ``lognormal`` only."""
    values: tuple[int, ...] = ()
    """The lengths of a file, ``list`` only."""

    @classmethod
    def fixed(cls, length: int) -> Self:
        """Every sequence has `length` tokens."""
        return cls(kind="fixed", max=length)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.kind == "lognormal" and (self.mean is None or self.sigma is None):
            raise ValueError("lognormal lengths need mean, max and sigma")
        if self.kind == "list" and (not self.values or min(self.values) < 2):
            raise ValueError("a list of lengths needs at least one length, each of 2 tokens or more")
        return self

    @property
    def vary(self) -> bool:
        """Are there sequences of different lengths?"""
        return self.kind == "lognormal" or len(set(self.values)) > 1

    def sample(self, count: int, seed: int) -> list[int]:
        """Return `count` lengths in tokens; the same ones for the same seed."""
        rng = random.Random(seed)
        if self.kind == "fixed":
            return [self.max] * count
        if self.kind == "list":
            return [min(self.max, rng.choice(self.values)) for _ in range(count)]
        assert self.mean is not None and self.sigma is not None
        mu = math.log(self.mean) - self.sigma**2 / 2
        return [max(2, min(self.max, round(rng.lognormvariate(mu, self.sigma)))) for _ in range(count)]

    def describe(self) -> str:
        """One phrase for a person."""
        if self.kind == "fixed":
            return f"{self.max} tokens"
        if self.kind == "list":
            return f"{len(self.values)} lengths of a file, at most {self.max} tokens"
        return f"lognormal lengths, mean {self.mean:g}, at most {self.max} tokens"


class Workload(Frozen):
    """What is trained. Everything here is part of a record's key."""

    model: str
    """As given by the user; folders and files as absolute paths."""
    model_kind: ModelKind
    config: dict[str, Any] | None = None
    """The Hugging Face config of a shape or a folder; None where only the worker can know it."""
    sources: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of the text of each file that the model, the loss or the batches come from."""
    loss: str | None = None
    """``module:function(model, batch) -> scalar mean loss``; None: the model's own loss."""
    batch_fn: str | None = None
    """``module:function(device, sequences, length) -> dict``, called once for all sequences of an optimizer step, with
    seeded generators; tensors with a row for each sequence are cut into micro-batches. None: random tokens."""
    init: Literal["random", "pretrained"] = "random"
    adapter: Adapter = Adapter.FULL
    lora_rank: int = Field(default=16, ge=1)
    lora_targets: str = "all-linear"
    """PEFT's ``target_modules``: ``all-linear`` or names with commas between."""
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Of the adapters where there are any, else of the model's own dropout layers."""
    precision: Precision = Precision.BF16_TRUE
    lengths: Lengths
    batch_size: int = Field(default=8, ge=1)
    """Sequences per optimizer step."""
    drop_last: bool = True
    """False: the last batch of an epoch may lack sequences, and one is replayed."""
    eval: bool = False
    """Is there an evaluation between optimizer steps? One is replayed."""
    eval_batch_size: int = Field(default=EVAL_BATCH_SIZE, ge=1)
    """Sequences of one forward of the evaluation, whatever the strategy's micro-batch. Means nothing without `eval`."""
    depth: int | None = Field(default=None, ge=1)
    """Decoder layers of a slice; None: the model's own depth."""

    def with_depth(self, layers: int) -> Workload | None:
        """Return the same workload with `layers` decoder layers; None where it cannot be asked for."""
        if self.config is None or "num_hidden_layers" not in self.config:
            return None
        return self.model_copy(update={"depth": layers})

    @property
    def layers(self) -> int | None:
        """Decoder layers, as far as the config tells."""
        if self.depth is not None:
            return self.depth
        return (self.config or {}).get("num_hidden_layers")

    @property
    def is_moe(self) -> bool:
        """Does the config name experts?"""
        return any("experts" in name for name in (self.config or {}))

    def digest(self) -> str:
        """Return the SHA-256 of the workload's canonical JSON; what means nothing in it is left out."""
        nothing = set() if self.eval else {"eval_batch_size"}
        text = json.dumps(self.model_dump(mode="json", exclude=nothing), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def describe(self) -> str:
        """One line for a person."""
        lora = "" if self.adapter is Adapter.FULL else f" r={self.lora_rank} on {self.lora_targets}"
        depth = "" if self.depth is None else f" ({self.depth} layers)"
        late = "" if self.drop_last else ", a partial last batch"
        late += f", with an evaluation of {self.eval_batch_size} at once" if self.eval else ""
        drop = f", dropout {self.dropout:g}" if self.dropout else ""
        return (
            f"{self.model}{depth}, {self.adapter}{lora}{drop}, {self.precision}, "
            f"{self.lengths.describe()}, {self.batch_size} sequences per optimizer step{late}, {self.init} weights"
        )
