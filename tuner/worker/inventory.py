"""What the memory of a step goes to: the ledger, from one step that is watched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from tuner.applied import Applied
from tuner.measured import MemoryLedger
from tuner.worker.memory import Memory


class StepWatch:
    """Is told the borders within one optimizer step, and reads the peak of each part.

    Only for a step in which nothing is compiled: it resets the allocator's peaks (see `Memory.part`).
    Allocating and freeing is booked when it is asked for, so the device is not waited for.

    Args:
        forwarded: called once, when the first forward has ended and all that it saved is there.
    """

    def __init__(self, memory: Memory, applied: Applied, forwarded: Callable[[], None] | None = None) -> None:
        self._memory, self._applied, self._at_forward = memory, applied, forwarded
        self._forward = self._backward = self._update = 0
        self._gradients = 0
        memory.part()  # what came before this step is not this step's

    def forwarded(self) -> None:
        """A forward has ended."""
        self._forward = max(self._forward, self._memory.part() or 0)
        if self._at_forward is not None:
            self._at_forward()
            self._at_forward = None

    def backwarded(self) -> None:
        """A backward has ended."""
        self._backward = max(self._backward, self._memory.part() or 0)

    def before_update(self) -> None:
        """All gradients are there, and the optimizer has not stepped yet."""
        self._gradients = gradient_bytes(self._applied.model)

    def ledger(self) -> MemoryLedger:
        """Return what the step showed, once it has ended."""
        self._update = self._memory.part() or 0
        parameters, state = parameter_bytes(self._applied.model), state_bytes(self._applied.optimizer)
        known = MemoryLedger(parameters_bytes=parameters, gradients_bytes=self._gradients, optimizer_state_bytes=state)
        if self._memory.device.type == "cuda" and self._memory.records_graphs:
            return known.model_copy(update=self._of_graphs())
        peaks = {
            "forward_peak_bytes": self._forward or None,
            "backward_peak_bytes": self._backward or None,
            "update_peak_bytes": self._update or None,
        }
        if self._memory.device.type == "cuda":
            rest = max(self._forward, self._backward, self._update) - parameters - self._gradients - state
            return known.model_copy(
                update={**peaks, "activations_bytes": max(0, rest), "activations_from": "allocator"}
            )
        return known.model_copy(update=peaks)

    def _of_graphs(self) -> dict[str, Any]:
        """Under replay the allocator sees no activation come or go: what the graphs' pools hold stands for them."""
        pools = self._memory.graph_pool_bytes() or 0
        # Gradients that nobody made before the first step are outputs of a graph, and lie in its pool.
        inside = 0 if self._applied.keep_gradients else self._gradients
        return {"activations_bytes": max(0, pools - inside), "activations_from": "graph_pools"}


def parameter_bytes(model: torch.nn.Module) -> int:
    """Return the bytes of parameters and buffers, each storage once, the scales of quantised weights included."""
    tensors = [*model.parameters(), *model.buffers()]
    states = [getattr(parameter, "quant_state", None) for parameter in model.parameters()]
    return storage_bytes([*tensors, *(t for state in states if state is not None for t in _tensors_of(state))])


def gradient_bytes(model: torch.nn.Module) -> int:
    """Return the bytes of the gradients that are there now."""
    return storage_bytes(p.grad for p in model.parameters() if p.grad is not None)


def state_bytes(optimizer: object) -> int:
    """Return the bytes of an optimizer's state tensors; 0 before its first step."""
    state = getattr(optimizer, "state", {})
    return storage_bytes(v for values in state.values() for v in values.values() if isinstance(v, torch.Tensor))


def storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of the storages of `tensors`; views and tied tensors share one."""
    sizes: dict[object, int] = {}
    for tensor in tensors:
        try:
            storage = tensor.untyped_storage()
            key, size = (tensor.device, storage.data_ptr()), storage.nbytes()
        except (NotImplementedError, RuntimeError):  # a tensor subclass without a storage of its own
            key, size = (tensor.device, id(tensor)), tensor.numel() * tensor.element_size()
        sizes[key] = size
    return sum(sizes.values())


def _tensors_of(state: object) -> Iterator[torch.Tensor]:
    """Tensors of a bitsandbytes `QuantState`, and of the one nested in it."""
    for value in vars(state).values():
        if isinstance(value, torch.Tensor):
            yield value
        elif type(value) is type(state):
            yield from _tensors_of(value)
