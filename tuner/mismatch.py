"""How a model differs from the workload that its plan was measured for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tuner.workload import Adapter, Precision, Workload

if TYPE_CHECKING:
    from torch import nn

_TRAINED = {Precision.BF16_TRUE: "bfloat16"}
"""The dtype of what is trained; float32 for the others."""
_FROZEN = {Precision.FP32_TRUE: "float32", Precision.FP16_MIXED: "float16"}
"""The dtype of a frozen base under an adapter; bfloat16 for the others."""
_OF_A_HEAD = ("summary", "classifier")
"""Settings of heads that a causal language model does not have (GPT-2's `summary_first_dropout` is 0.1)."""


def active_dropout(model: nn.Module) -> float:
    """Return the largest dropout probability of the model: of its layers, its modules' own figures, its configs."""
    from torch import nn

    found = [0.0]
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            found.append(float(module.p))
        found += _named_dropouts(vars(module))
        config = getattr(module, "config", None)
        found += _named_dropouts(config if isinstance(config, Mapping) else getattr(config, "__dict__", {}))
    return max(found)


def _named_dropouts(values: Mapping[str, Any]) -> Iterator[float]:
    for name, value in values.items():
        is_one = isinstance(name, str) and ("dropout" in name or name.endswith("_pdrop"))
        if is_one and isinstance(value, float) and not name.startswith(_OF_A_HEAD):
            yield value


def mismatches(model: nn.Module, workload: Workload, dropout: float, layers: int | None) -> list[str]:
    """Return a sentence for each thing in which `model` differs from what was measured.

    Args:
        dropout: the model's active one.
        layers: its decoder layers, where it has any.
    """
    found = [_dropout(workload, dropout), _layers(workload, layers), *_adapter(model, workload)]
    if not any(found[2:]):
        # Where the adapter is missing the dtypes differ too, and say nothing more.
        found += [_dtype(model, True, _trained_dtype(workload)), _dtype(model, False, _frozen_dtype(workload))]
    return [sentence for sentence in found if sentence]


def _dropout(workload: Workload, dropout: float) -> str | None:
    if dropout == workload.dropout:
        return None
    return f"dropout: the model has {dropout:g}, the plan was measured with {workload.dropout:g}"


def _layers(workload: Workload, layers: int | None) -> str | None:
    if layers is None or workload.layers in (None, layers):
        return None
    return f"layers: the model has {layers}, the plan was measured with {workload.layers}"


def _adapter(model: nn.Module, workload: Workload) -> list[str | None]:
    params = list(model.named_parameters())
    adapted = any(p.requires_grad and "lora_" in name for name, p in params)
    wants_adapter = workload.adapter is not Adapter.FULL
    if adapted and not wants_adapter:
        return ["adapter: the model has LoRA adapters, the plan was measured training the whole model"]
    if wants_adapter and all(p.requires_grad for _, p in params):
        return [f"adapter: the plan was measured with {workload.adapter}, but every parameter of the model is trained"]
    if workload.adapter is Adapter.QLORA and not any(type(m).__name__ == "Linear4bit" for m in model.modules()):
        return ["adapter: the plan was measured with qlora, but the model has no 4-bit layer"]
    return []


def _trained_dtype(workload: Workload) -> str:
    return _TRAINED.get(workload.precision, "float32")


def _frozen_dtype(workload: Workload) -> str | None:
    return None if workload.adapter is Adapter.FULL else _FROZEN.get(workload.precision, "bfloat16")


def _dtype(model: nn.Module, trained: bool, wanted: str | None) -> str | None:
    sizes: Counter[str] = Counter()
    for param in model.parameters():
        if param.requires_grad is trained and param.is_floating_point():
            sizes[str(param.dtype).removeprefix("torch.")] += param.numel()
    if wanted is None or not sizes or sizes.most_common(1)[0][0] == wanted:
        return None
    which = "trained" if trained else "frozen"
    return f"precision: {which} parameters are {sizes.most_common(1)[0][0]}, the plan was measured with {wanted}"
