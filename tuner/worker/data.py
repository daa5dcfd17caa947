"""Batches on the device: the same sequences in every strategy, cut to its micro-batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tuner.worker.user_code import UserCodeError, load_function, users_code
from tuner.workload import Workload

Batch = dict[str, Any]
IGNORED = -100
"""The label that a loss leaves out (torch.nn.functional.cross_entropy)."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One forward's input."""

    batch: Batch
    share: float
    """Its part of the optimizer step's trained tokens; a mean loss is scaled by it."""
    tokens: int
    """Non-padding tokens."""
    trained: torch.Tensor
    """Trained tokens of the whole optimizer step. A tensor: dynamo would compile anew for each number."""


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One optimizer step's input: the workload's sequences in micro-batches."""

    micro_batches: tuple[MicroBatch, ...]
    tokens: int


class Batches:
    """Makes and keeps the steps' batches. Random tokens of the model's vocabulary, or the user's own function."""

    def __init__(self, workload: Workload, model: nn.Module, device: torch.device, micro_batch: int, seed: int) -> None:
        self.workload, self.device, self.micro_batch, self.seed = workload, device, micro_batch, seed
        self.vocabulary = _vocabulary(model)
        self.distinct = 16 if workload.lengths.vary else 2
        self._function: Callable[..., Batch] | None = load_function(workload.batch_fn) if workload.batch_fn else None
        self._steps: list[StepBatch] = []

    def step(self, index: int) -> StepBatch:
        """Return the batch of optimizer step `index`; they repeat after a few."""
        position = index % self.distinct
        while len(self._steps) <= position:
            self._steps.append(self._make(len(self._steps)))
        return self._steps[position]

    def prepare(self) -> None:
        """Put all distinct batches on the device, so that no step pays for them."""
        self.step(self.distinct - 1)

    def warmup(self, rows: int) -> MicroBatch:
        """Return one micro-batch of `rows` sequences of the longest length."""
        return self._micro_batch([self.workload.lengths.max] * rows, self._generator(-1), None)

    def longest(self) -> StepBatch:
        """Return a step of nothing but sequences of the longest length."""
        workload, longest = self.workload, self.workload.lengths.max
        groups = workload.batch_size // self.micro_batch
        trained = (longest - 1) * workload.batch_size
        lengths, generator = [longest] * self.micro_batch, self._generator(-2)
        made = tuple(self._micro_batch(lengths, generator, trained) for _ in range(groups))
        return StepBatch(micro_batches=made, tokens=sum(m.tokens for m in made))

    def _generator(self, index: int) -> torch.Generator:
        # On the CPU, so that every device trains on the same tokens.
        return torch.Generator().manual_seed(self.seed * 1_000_003 + index + 1)

    def _make(self, index: int) -> StepBatch:
        workload = self.workload
        lengths = workload.lengths.sample(workload.batch_size, self.seed * 7919 + index)
        generator = self._generator(index)
        groups = [lengths[i : i + self.micro_batch] for i in range(0, len(lengths), self.micro_batch)]
        trained = sum(length - 1 for length in lengths)
        made = tuple(self._micro_batch(group, generator, trained) for group in groups)
        return StepBatch(micro_batches=made, tokens=sum(m.tokens for m in made))

    def _micro_batch(self, lengths: list[int], generator: torch.Generator, trained: int | None) -> MicroBatch:
        # Labels are shifted inside the model, so a sequence of n tokens trains n - 1.
        own = sum(length - 1 for length in lengths)
        total = own if trained is None else trained
        batch = self._random(lengths, generator) if self._function is None else self._users_batch(lengths)
        return MicroBatch(batch, own / total, sum(lengths), torch.tensor(float(total), device=self.device))

    def _random(self, lengths: list[int], generator: torch.Generator) -> Batch:
        rows = [torch.randint(0, self.vocabulary, (length,), generator=generator) for length in lengths]
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        labels = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=IGNORED)
        batch = {"input_ids": ids.to(self.device), "labels": labels.to(self.device)}
        if self.workload.lengths.vary:
            mask = torch.arange(ids.shape[1])[None, :] < torch.tensor(lengths)[:, None]
            batch["attention_mask"] = mask.to(device=self.device, dtype=torch.long)
        return batch

    def _users_batch(self, lengths: list[int]) -> Batch:
        assert self._function is not None
        with users_code(str(self.workload.batch_fn)):
            batch = self._function(self.device, len(lengths), max(lengths))
        if not isinstance(batch, dict):
            raise UserCodeError(f"{self.workload.batch_fn} returned {type(batch).__name__}, not a dict")
        return batch


def _vocabulary(model: nn.Module) -> int:
    config = getattr(model, "config", None)
    size = getattr(config, "vocab_size", None)
    if size is None:
        embeddings = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)]
        size = max(embeddings, default=2)
    return int(size)


class Loss:
    """Forward and loss of one micro-batch: the share of the optimizer step's mean loss."""

    def __init__(self, workload: Workload, model: nn.Module) -> None:
        self.model = model
        self._function: Callable[..., torch.Tensor] | None = load_function(workload.loss) if workload.loss else None
        self._spec = workload.loss or workload.model
        # transformers' models sum over the labels and divide by `num_items_in_batch` themselves. What
        # a batch of the user's holds is not known, so there the mean of a micro-batch is taken.
        self._normalised = self._function is None and workload.batch_fn is None and _is_transformers(model)

    def __call__(self, micro_batch: MicroBatch) -> torch.Tensor:
        """Return a scalar; summed over the step's micro-batches it is the mean over the step's tokens."""
        if self._normalised:
            return self._loss_of(self.model(**micro_batch.batch, num_items_in_batch=micro_batch.trained))
        if self._function is not None:
            return self._scalar(self._function(self.model, micro_batch.batch)) * micro_batch.share
        return self._loss_of(self.model(**micro_batch.batch)) * micro_batch.share

    def _loss_of(self, output: Any) -> torch.Tensor:
        loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
        if loss is None:
            raise UserCodeError(f"{self._spec}: the model returns no loss; give --loss module:function(model, batch)")
        return self._scalar(loss)

    def _scalar(self, loss: Any) -> torch.Tensor:
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            shape = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise UserCodeError(f"{self._spec}: the loss is {shape}, not one number")
        return loss


def _is_transformers(model: nn.Module) -> bool:
    """Is it a model of transformers, adapters or not? By name: where it is none, transformers is not imported."""
    unwrap: Any = getattr(model, "get_base_model", lambda: model)
    base = unwrap()
    return any(c.__name__ == "PreTrainedModel" and c.__module__.startswith("transformers.") for c in type(base).__mro__)
