"""A model with a strategy on it, and how one optimizer step is trained with it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tuner.workload import Precision

if TYPE_CHECKING:
    import torch
    from torch import nn

NOT_WARMED_UP = "warmup_fraction: the warm-up batch has not been run; call `Applied.warm_up` before the first step"


@dataclass(slots=True, kw_only=True)
class Applied:
    """A model with a strategy on it, and how to train it."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    micro_batch: int
    """Sequences per forward."""
    accumulation: int
    """Forwards per optimizer step: the workload's sequences per step over the micro-batch."""
    warmup: int | None
    """Sequences of a warm-up batch before the first step; None: none. See `warm_up`."""
    unapplied: tuple[str, ...]
    """What could not be applied, or has not been yet, or differs from what was measured; a sentence each."""
    done: tuple[str, ...]
    """What was applied, a sentence each."""
    precision: Precision
    device_type: str
    keep_gradients: bool
    """Gradients are zeroed in place, never set to None."""
    records_graphs: bool
    _scaler: Any = None

    @contextlib.contextmanager
    def step(self) -> Iterator[Step]:
        """One optimizer step: call `Step.backward` for each micro-batch inside, the rest is done here.

        On leaving, the optimizer steps and the gradients are zeroed the way the strategy needs;
        where the block raises, neither happens.
        """
        step = Step(self)
        yield step
        step.finish()

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """Around each forward and its loss: the workload's precision, and a mark for CUDA graphs."""
        import torch

        if self.records_graphs:
            # The last micro-batch's outputs may be overwritten from here on.
            torch.compiler.cudagraph_mark_step_begin()
        dtype = {Precision.BF16_MIXED: torch.bfloat16, Precision.FP16_MIXED: torch.float16}.get(self.precision)
        with torch.autocast(self.device_type, dtype=dtype) if dtype else contextlib.nullcontext():
            yield

    def warm_up(self, loss_of: Callable[[int], torch.Tensor]) -> None:
        """Compile on a smaller batch before the first step, where the strategy asks for it; else do nothing.

        Runs forward and backward and drops the gradients: it trains nothing.

        Args:
            loss_of: returns the loss of a batch of so many sequences.
        """
        if self.warmup is None:
            return
        with self.forward():
            loss = loss_of(self.warmup)
        loss.backward()
        del loss
        self.zero_grad()
        self.unapplied = tuple(sentence for sentence in self.unapplied if sentence != NOT_WARMED_UP)

    def zero_grad(self) -> None:
        """Zero the gradients: in place where CUDA graphs hold them, else by dropping them."""
        self.optimizer.zero_grad(set_to_none=not self.keep_gradients)

    @property
    def scaler(self) -> Any:
        """The gradient scaler of ``fp16-mixed``; one that does nothing for the others."""
        if self._scaler is None:
            import torch

            self._scaler = torch.amp.GradScaler(self.device_type, enabled=self.precision is Precision.FP16_MIXED)
        return self._scaler


@dataclass(slots=True)
class Step:
    """One optimizer step in progress."""

    applied: Applied
    before_update: Callable[[], None] | None = None
    """Called between the last backward and the optimizer, with unscaled gradients in place."""

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward of one micro-batch; `loss` is its share of the step's mean loss."""
        self.applied.scaler.scale(loss).backward()

    def finish(self) -> None:
        """Unscale, call `before_update`, step, zero the gradients."""
        applied = self.applied
        if self.before_update is not None:
            applied.scaler.unscale_(applied.optimizer)
            self.before_update()
        applied.scaler.step(applied.optimizer)
        applied.scaler.update()
        applied.zero_grad()
