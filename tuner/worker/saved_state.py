"""Does the state that a training run saves load into the plain model? No byte of the device is taken for it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import nn

from tuner.worker.load import load_model
from tuner.workload import Adapter, ModelKind, Workload

WRAPPERS = frozenset({"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module", "module"})
"""What torch's own wrappers put into a name."""

Shapes = dict[str, tuple[int, ...] | None]


class SavedState:
    """The state dict's keys, shapes and shared tensors as they are before a strategy is put on the model.

    Parameters are the strategy's responsibility. What a plain forward does to a model is not: a buffer
    that is made, grown or dropped there differs under every strategy alike.

    Args:
        notes: gets a sentence where the model's own `state_dict` raises; nothing is compared then.
    """

    def __init__(self, model: nn.Module, notes: list[str]) -> None:
        self._notes = notes
        self._parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        self._shapes = self._read(model)
        self._tied = _tied(model)

    def fault(self, model: nn.Module) -> str | None:
        """Return one sentence for the first key that a strategy changed; None: all are as they were."""
        now = self._read(model) if self._shapes is not None else None
        if self._shapes is None or now is None:
            return None
        added = {_plain(name): name for name in now if name not in self._shapes}
        for name, shape in self._shapes.items():
            if name not in now and (name in self._parameters or name in added):
                return f"saved state: the key {name} is gone{_instead(name, added)}"
            if name in now and now[name] != shape and name in self._parameters:
                return f"saved state: {name} has the shape {now[name]}, before the strategy {shape}"
        return _untied(self._tied, model)

    def _read(self, model: nn.Module) -> Shapes | None:
        try:
            return _shapes(model.state_dict())
        except (Exception, SystemExit) as error:  # the border to code that is not ours: anything may come
            self._notes.append(f"saved state: nothing was compared, as state_dict() raised {_why(error)}")
            return None


def load_strictly(model: nn.Module, workload: Workload, notes: list[str]) -> None:
    """Load the state of `model` into a plain twin, strictly; `notes` gets a sentence where that fails or cannot be.

    That alone is no strategy's fault: where all parameters are as before it (`SavedState`), the plain
    model does not load either, as one that saves a part of itself, or whose checkpoint is quantised.
    The twin has no memory of its own and takes the tensors over (``assign=True``). A user's function
    is never called a second time: what it reads would be read again.
    """
    if workload.model_kind is ModelKind.FUNCTION:
        return
    if workload.adapter is Adapter.QLORA:
        notes.append("saved state: keys and shapes alone were compared, as a quantised model needs a device")
        return
    plain = workload.model_copy(update={"init": "random"})
    try:
        twin = load_model(plain, torch.device("meta"), seed=0)
    except (Exception, SystemExit) as error:  # as above
        notes.append(f"saved state: keys and shapes alone were compared, as the plain twin raised {_why(error)}")
        return
    try:
        twin.load_state_dict(model.state_dict(), strict=True, assign=True)
    except (Exception, SystemExit) as error:  # as above
        as_before = "no parameter's key or shape is other than before the strategy"
        notes.append(f"saved state: a strict load into a model made from its config fails ({_why(error)}); {as_before}")


def _why(error: BaseException) -> str:
    said = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
    return f"{type(error).__name__}: {said[:300] or 'nothing said'}"


def _shapes(state: dict[str, Any]) -> Shapes:
    """Shapes by key; None for what is no tensor (a module's extra state)."""
    return {name: tuple(v.shape) if isinstance(v, torch.Tensor) else None for name, v in state.items()}


def _plain(name: str) -> str:
    """Return a key without what wrappers put into it."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def _instead(name: str, added: dict[str, str]) -> str:
    new = added.get(_plain(name)) or next(iter(added.values()), None)
    return "" if new is None else f", and there is {new}"


def _tied(model: nn.Module) -> list[list[str]]:
    """The groups of names that are one parameter."""
    groups: dict[int, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups[id(parameter)].append(name)
    return [names for names in groups.values() if len(names) > 1]


def _untied(tied: list[list[str]], model: nn.Module) -> str | None:
    now = {name: id(parameter) for name, parameter in model.named_parameters(remove_duplicate=False)}
    torn = next((names for names in tied if len({now.get(name) for name in names}) > 1), None)
    return None if torn is None else f"saved state: {' and '.join(torn)} are no longer one tensor"
