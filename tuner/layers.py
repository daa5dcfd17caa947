"""The parts of a model that a strategy works on: decoder layers, and the modules of a compile scope."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tuner.errors import ExitCode, TunerError

if TYPE_CHECKING:
    from torch import nn

_ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)
_MLP = re.compile(r"mlp|ffn|feed_forward|moe|experts", re.IGNORECASE)


class BuildConflict(TunerError):
    """This model cannot have this strategy, for a reason that only the model itself shows."""

    exit_code = ExitCode.WRONG_INPUT


def decoder_layers(model: nn.Module) -> Sequence[nn.Module]:
    """Return the model's decoder layers: of all lists of alike modules the one with most parameters.

    A list is an `nn.ModuleList`, or an `nn.Sequential` whose parts have parts of their own.

    Raises:
        BuildConflict: there is no such list.
    """
    lists = [parts for m in model.modules() if (parts := _alike_parts(m))]
    if not lists:
        name = type(model).__name__
        raise BuildConflict(f"the model {name} has no list of decoder layers (an nn.ModuleList of one class)")
    return max(lists, key=lambda parts: sum(p.numel() for part in parts for p in part.parameters()))


def _alike_parts(module: nn.Module) -> list[nn.Module]:
    from torch import nn

    parts = list(module.children())
    if len({type(part) for part in parts}) != 1:
        return []
    layered = isinstance(module, nn.Sequential) and all(any(part.children()) for part in parts)
    return parts if layered or isinstance(module, nn.ModuleList) else []


def scope_modules(model: nn.Module, scope: str) -> Sequence[nn.Module]:
    """Return the modules that a compile scope names, in order.

    Raises:
        BuildConflict: the model has none such.
    """
    if scope == "whole":
        return [model]
    layers = decoder_layers(model)
    if scope == "layer":
        return layers
    pattern = {"attention": _ATTENTION, "mlp": _MLP}[scope]
    # A norm such as `post_attention_layernorm` has the word in its name too, and no children.
    found = [c for layer in layers for n, c in layer.named_children() if pattern.search(n) and any(c.children())]
    if not found:
        raise BuildConflict(f"scope {scope}: the layers of class {type(layers[0]).__name__} have no child named so")
    return found


def switch_cache_off(model: nn.Module) -> bool:
    """Set `use_cache` of the model's configs to False; return whether one was on.

    Training has no use for a KV cache. Under a compiled layer it is worse: dynamo guards the length of
    the cache's list, which grows with each layer, so that after eight layers the recompile limit is
    reached and the rest runs eager. `generate` asks for its cache by `generation_config`, which stays.
    """
    configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    found = [c for c in configs.values() if getattr(c, "use_cache", False) is True]
    for config in found:
        config.use_cache = False
    return bool(found)


def make_traceable(module: nn.Module) -> None:
    """Give a module of torch's own, such as an `nn.Sequential`, a `forward` that dynamo traces.

    dynamo skips frames of torch's own files and says nothing, so that compiling one alone does nothing.
    """
    import torch

    own = inspect.getsourcefile(type(module).forward) or ""
    if not own.startswith(os.path.dirname(torch.__file__)):
        return
    forward = module.forward

    def traced_forward(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    module.forward = traced_forward
