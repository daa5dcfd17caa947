"""Optimizer steps, timed one by one or as a window."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Protocol

import torch

from tuner.build import Applied, Step
from tuner.worker.data import Batches, Loss, MicroBatch, StepBatch
from tuner.worker.memory import Memory


class Watch(Protocol):
    """Is told the borders within one optimizer step."""

    def forwarded(self) -> None:
        """A forward has ended."""

    def backwarded(self) -> None:
        """A backward has ended."""

    def before_update(self) -> None:
        """All gradients are there, unscaled, and the optimizer has not stepped yet."""


Forward = Callable[[], torch.Tensor]
Observer = Callable[[Forward], torch.Tensor]
"""Runs one forward and looks at it."""


class Steps:
    """Trains the built strategy on its batches."""

    def __init__(self, applied: Applied, batches: Batches, loss: Loss, memory: Memory) -> None:
        self.applied, self.batches, self.loss, self.memory = applied, batches, loss, memory
        self.device = memory.device

    def timed(
        self,
        batch: StepBatch,
        before_update: Callable[[], None] | None = None,
        observe: Observer | None = None,
        watch: Watch | None = None,
    ) -> tuple[float, float]:
        """Run one synchronised optimizer step; return its mean loss and its seconds."""
        started = time.perf_counter()
        loss = self.run(batch, before_update, observe, watch)
        self.memory.synchronize()
        return float(loss), time.perf_counter() - started

    def warm_up(self) -> float:
        """Run the warm-up batch; return its seconds."""
        started = time.perf_counter()
        self.applied.warm_up(lambda rows: self.loss(self.batches.warmup(rows)))
        self.memory.synchronize()
        return time.perf_counter() - started

    def evaluate(self, micro_batch: MicroBatch) -> None:
        """Run one forward and its loss, and drop both."""
        self._forward(micro_batch, None)

    def window(self, count: int, done: Callable[[int], None]) -> tuple[list[float], int, float]:
        """Run `count` steps, synchronised once at the end; return the seconds of each, all tokens, the last loss.

        `done` is told the number of each step that was submitted.
        """
        tokens, loss = 0, torch.zeros(())
        marks = [self._mark()]
        for index in range(count):
            batch = self.batches.step(index)
            loss = self.run(batch)
            tokens += batch.tokens
            done(index + 1)
            marks.append(self._mark())
        self.memory.synchronize()
        return [_between(first, second) for first, second in itertools.pairwise(marks)], tokens, float(loss)

    def run(
        self,
        batch: StepBatch,
        before_update: Callable[[], None] | None = None,
        observe: Observer | None = None,
        watch: Watch | None = None,
    ) -> torch.Tensor:
        """Run one optimizer step and return its mean loss; `observe` sees the first micro-batch."""
        total = torch.zeros((), device=self.device)
        with self.applied.step() as step:
            step.before_update = before_update if watch is None else watch.before_update
            for number, micro_batch in enumerate(batch.micro_batches):
                loss = self._forward(micro_batch, observe if number == 0 else None)
                total += loss.detach()  # copied at once: a CUDA graph's output is overwritten by the next replay
                if watch is not None:
                    watch.forwarded()
                step.backward(loss)
                del loss
                if watch is not None:
                    watch.backwarded()
        return total

    def rehearse(self, batch: StepBatch) -> None:
        """Run all of an optimizer step but its update, and zero the gradients as the strategy does."""
        step = Step(self.applied)
        for micro_batch in batch.micro_batches:
            step.backward(self._forward(micro_batch, None))
        self.applied.zero_grad()
        self.memory.synchronize()

    def _forward(self, micro_batch: MicroBatch, observe: Observer | None) -> torch.Tensor:
        with self.applied.forward():
            if observe is None:
                return self.loss(micro_batch)
            return observe(lambda: self.loss(micro_batch))

    def _mark(self) -> torch.cuda.Event | float:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _between(first: torch.cuda.Event | float, second: torch.cuda.Event | float) -> float:
    if isinstance(first, float):
        assert isinstance(second, float)
        return second - first
    assert not isinstance(second, float)
    return float(first.elapsed_time(second)) / 1000
