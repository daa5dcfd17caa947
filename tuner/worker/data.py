"""Batches on the device: the same sequences in every strategy, cut to its micro-batch."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tuner.worker.failure import users_forward
from tuner.worker.user_code import UserCodeError, load_function, users_code
from tuner.workload import ModelKind, Workload

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
    positions: int
    """Sequences times the length that they are padded to: what the device computes."""


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

    def fresh(self, index: int) -> StepBatch:
        """Return a step of the workload's lengths that `step` never returns."""
        return self._make(self.distinct + index)

    def prepare(self) -> None:
        """Put all distinct batches on the device, so that no step pays for them."""
        self.step(self.distinct - 1)

    def warmup(self, rows: int) -> MicroBatch:
        """Return one micro-batch of `rows` sequences of the longest length."""
        return self._cut([self.workload.lengths.max] * rows, index=-1, rows=rows).micro_batches[0]

    def longest(self) -> StepBatch:
        """Return a step of nothing but sequences of the longest length."""
        return self._cut([self.workload.lengths.max] * self.workload.batch_size, index=-2, rows=self.micro_batch)

    def partial(self) -> StepBatch | None:
        """Return the last step of an epoch that lacks one sequence; None: a step has no more than one."""
        rows = self.workload.batch_size - 1
        return self._cut([self.workload.lengths.max] * rows, index=-3, rows=self.micro_batch) if rows else None

    def evaluation(self) -> MicroBatch:
        """Return a batch of the longest sequences: as many in every strategy, as an evaluation has no micro-batch."""
        rows = self.workload.eval_batch_size
        return self._cut([self.workload.lengths.max] * rows, index=-4, rows=rows).micro_batches[0]

    def skewed(self) -> StepBatch | None:
        """Return a step of the longest sequences in which every token is the same one, so that a router sends
        all to the same experts; None: the batches are the user's own."""
        if self._function is not None:
            return None
        step = self._cut([self.workload.lengths.max] * self.workload.batch_size, index=-5, rows=self.micro_batch)
        for micro_batch in step.micro_batches:
            for name in ("input_ids", "labels"):
                micro_batch.batch[name].fill_(1)
        return step

    def _make(self, index: int) -> StepBatch:
        workload = self.workload
        lengths = workload.lengths.sample(workload.batch_size, self.seed * 7919 + index)
        return self._cut(lengths, index, self.micro_batch)

    def _cut(self, lengths: list[int], index: int, rows: int) -> StepBatch:
        """Make a step's sequences and cut them into micro-batches of `rows`."""
        # Labels are shifted inside the model, so a sequence of n tokens trains n - 1.
        trained = sum(length - 1 for length in lengths)
        made, positions = [], 0
        for group, batch in zip(_groups(lengths, rows), self._batches(lengths, index, rows), strict=True):
            share = sum(length - 1 for length in group) / trained
            made.append(MicroBatch(batch, share, sum(group), torch.tensor(float(trained), device=self.device)))
            positions += len(group) * max(group)
        return StepBatch(micro_batches=tuple(made), tokens=sum(lengths), positions=positions)

    def _batches(self, lengths: list[int], index: int, rows: int) -> list[Batch]:
        seed = self.seed * 1_000_003 + index + 1
        if self._function is None:
            # On the CPU, so that every device trains on the same tokens.
            generator = torch.Generator().manual_seed(seed)
            return [self._random(group, generator) for group in _groups(lengths, rows)]
        return self._rows_of(self._users_batch(lengths, seed), len(lengths), rows)

    def _random(self, lengths: list[int], generator: torch.Generator) -> Batch:
        rows = [torch.randint(0, self.vocabulary, (length,), generator=generator) for length in lengths]
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        labels = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=IGNORED)
        batch = {"input_ids": ids.to(self.device), "labels": labels.to(self.device)}
        if self.workload.lengths.vary:
            mask = torch.arange(ids.shape[1])[None, :] < torch.tensor(lengths)[:, None]
            batch["attention_mask"] = mask.to(device=self.device, dtype=torch.long)
        return batch

    def _users_batch(self, lengths: list[int], seed: int) -> Batch:
        """Call the user's function once for all of a step's sequences: they do not depend on the micro-batch."""
        assert self._function is not None
        _seed_everything(seed)
        with users_code(str(self.workload.batch_fn)):
            batch = self._function(self.device, len(lengths), max(lengths))
        if not isinstance(batch, dict):
            raise UserCodeError(f"{self.workload.batch_fn} returned {type(batch).__name__}, not a dict")
        return batch

    def _rows_of(self, batch: Batch, count: int, rows: int) -> list[Batch]:
        """Cut every tensor that has a row for each sequence; the rest goes to every micro-batch as it is."""
        if rows == count:
            return [batch]
        cut = {n for n, v in batch.items() if isinstance(v, torch.Tensor) and v.ndim > 0 and v.shape[0] == count}
        if not cut:
            raise UserCodeError(
                f"{self.workload.batch_fn}: asked for {count} sequences it returned no tensor of {count} rows"
            )
        # Cloned: rows of a larger tensor may lie unaligned, and kernels then differ from a loader's own batches.
        return [
            {n: v[start : start + rows].clone() if n in cut else v for n, v in batch.items()}
            for start in range(0, count, rows)
        ]


def _groups(lengths: list[int], rows: int) -> list[list[int]]:
    return [lengths[i : i + rows] for i in range(0, len(lengths), rows)]


def _seed_everything(seed: int) -> None:
    """Seed the generators that a user's function may draw from; numpy's where it is imported."""
    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def _vocabulary(model: nn.Module) -> int:
    config = getattr(model, "config", None)
    size = getattr(config, "vocab_size", None)
    if size is None:
        embeddings = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)]
        size = max(embeddings, default=2)
    return int(size)


class Loss:
    """Forward and loss of one micro-batch: the share of the optimizer step's mean loss."""

    def __init__(self, workload: Workload, model: nn.Module, compiled: bool = False) -> None:
        self.model = model
        self._function: Callable[..., torch.Tensor] | None = load_function(workload.loss) if workload.loss else None
        self._spec = workload.loss or workload.model
        # transformers' models sum over the labels and divide by `num_items_in_batch` themselves. What
        # a batch of the user's holds is not known, so there the mean of a micro-batch is taken.
        self._normalised = self._function is None and workload.batch_fn is None and _is_transformers(model)
        users = workload.loss or workload.batch_fn or workload.model_kind is ModelKind.FUNCTION
        # Where something is compiled an exception may be the compiler's; the eager strategies tell the user's apart.
        self._is_users_alone = bool(users) and not compiled

    def __call__(self, micro_batch: MicroBatch) -> torch.Tensor:
        """Return a scalar; summed over the step's micro-batches it is the mean over the step's tokens.

        Raises:
            UserCodeError: the user's own code raised, or its loss is no scalar.
        """
        if self._is_users_alone:
            with users_forward(self._spec):
                return self._share_of(micro_batch)
        return self._share_of(micro_batch)

    def _share_of(self, micro_batch: MicroBatch) -> torch.Tensor:
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
