"""Does the state that a training run saves load into the plain model? No byte of the device is taken for it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tuner.worker.load import load_model
from tuner.workload import Adapter, Workload


class SavedState:
    """The state dict's keys, shapes and shared tensors as they are before a strategy is put on the model."""

    def __init__(self, model: nn.Module) -> None:
        self._shapes = _shapes(model)
        self._tied = _tied(model)

    def fault(self, model: nn.Module) -> str | None:
        """Return one sentence for the first key that differs now; None: all are as they were."""
        now = _shapes(model)
        for name, shape in self._shapes.items():
            if name not in now:
                return f"saved state: the key {name} is gone{_instead(now, self._shapes)}"
            if now[name] != shape:
                return f"saved state: {name} has the shape {now[name]}, before the strategy {shape}"
        if added := next((name for name in now if name not in self._shapes), None):
            return f"saved state: the key {added} was not there before the strategy"
        return _untied(self._tied, _tied(model))


def load_fault(model: nn.Module, workload: Workload, notes: list[str]) -> str | None:
    """Return one sentence that says why the state of `model` does not load into a plain twin; None: it does.

    The twin is built without memory of its own, and takes the tensors of the model over
    (``assign=True``). Where no such twin can be built a sentence is added to `notes`.
    """
    twin = _plain_twin(workload, notes)
    if twin is None:
        return None
    try:
        twin.load_state_dict(model.state_dict(), strict=True, assign=True)
    except RuntimeError as error:
        said = [line.strip() for line in str(error).splitlines()[1:] if line.strip()]
        return f"saved state: a strict load into the plain model fails: {' '.join(said)[:300]}"
    return None


def _plain_twin(workload: Workload, notes: list[str]) -> nn.Module | None:
    if workload.adapter is Adapter.QLORA:
        notes.append("saved state: keys and shapes alone were compared, as a quantised model needs a device")
        return None
    plain = workload.model_copy(update={"init": "random"})
    try:
        with NothingOnTheCard():
            return load_model(plain, torch.device("meta"), seed=0)
    except (Exception, SystemExit) as error:  # the border to code that is not ours: anything may come
        notes.append(f"saved state: keys and shapes alone were compared: {_why(error)}")
        return None


class NothingOnTheCard(TorchDispatchMode):
    """Refuses every tensor that is asked for on a card: a user's function may name one itself.

    PEFT makes its few small tensors on the host and moves them.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run `func`, unless it names such a device."""
        asked = (kwargs or {}).get("device")
        if asked is not None and torch.device(asked).type not in ("meta", "cpu"):
            raise RuntimeError(f"it asks for a tensor on {asked}")
        return func(*args, **(kwargs or {}))


def _why(error: BaseException) -> str:
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), "nothing said")
    return f"no plain model could be built without memory ({type(error).__name__}: {said[:200]})"


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...] | None]:
    """Shapes by key; None for what is no tensor (a module's extra state)."""
    return {name: tuple(v.shape) if isinstance(v, torch.Tensor) else None for name, v in model.state_dict().items()}


def _tied(model: nn.Module) -> set[tuple[str, ...]]:
    """The groups of keys that are one tensor."""
    groups: dict[int, list[str]] = defaultdict(list)
    for name, value in model.state_dict(keep_vars=True).items():
        if isinstance(value, torch.Tensor):
            groups[id(value)].append(name)
    return {tuple(names) for names in groups.values() if len(names) > 1}


def _untied(before: set[tuple[str, ...]], now: set[tuple[str, ...]]) -> str | None:
    if before == now:
        return None
    names = sorted(before ^ now)[0]
    return f"saved state: {' and '.join(names)} {'are no longer' if names in before else 'became'} one tensor"


def _instead(now: dict[str, tuple[int, ...] | None], before: dict[str, tuple[int, ...] | None]) -> str:
    new = next((name for name in now if name not in before), None)
    return "" if new is None else f", and there is {new}"
