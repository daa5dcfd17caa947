"""Which knobs changed nothing, as the worker sees it: each with one sentence of evidence."""

from __future__ import annotations

import torch

from tuner.worker.measurement import Measurement


def no_effect(m: Measurement, whole: bool) -> dict[str, str]:
    """Return the knobs of a trial that changed nothing.

    Args:
        whole: the trial came to its end; before that it is not known whether graphs were recorded.
    """
    if m.request.twin is not None:
        return {}  # on a slice, in one step: that says nothing of the model
    found = {"optimizer": _small_tensors(m), "activation_memory_budget": _ignored_budget(m)}
    if whole:
        found["mode"] = no_graphs(m)
    return {knob: why for knob, why in found.items() if why is not None}


def _small_tensors(m: Measurement) -> str | None:
    """An 8-bit optimizer keeps tensors under 4,096 elements in 32 bits; with none larger it changed nothing."""
    if m.applied is None or not str(m.request.strategy["optimizer"]).startswith("adamw-8bit"):
        return None
    state = m.applied.optimizer.state
    tensors = [v for s in state.values() for v in s.values() if isinstance(v, torch.Tensor)]
    if not tensors or any(t.dtype is torch.uint8 for t in tensors):
        return None
    return "optimizer: no tensor is large enough for 8-bit state"


def _ignored_budget(m: Measurement) -> str | None:
    """Below the size of a region's inputs torch ignores the budget; so it does where nothing can be recomputed."""
    budget = float(m.request.strategy["activation_memory_budget"])
    if m.health is None or budget == 1 or not m.health.plan_unchanged():
        return None
    return f"activation_memory_budget: with {budget:g} torch saves exactly what it saves without a budget"


def no_graphs(m: Measurement) -> str | None:
    """A mode that records CUDA graphs, and recorded none, was measured as the mode without them."""
    if m.applied is None or m.health is None or not m.applied.records_graphs or m.health.recorded_graphs():
        return None
    why = m.health.skipped_graphs() or "inductor gave no reason"
    return f"mode: {m.request.strategy['mode']} recorded no CUDA graph ({why})"
