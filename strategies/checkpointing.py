"""Whether decoder layers keep their activations or compute them again in the backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from strategies.knob import GRAPH_MODES, Build, Conflict, Knob, Stage, Strategy, Target, Value, impossible, pointless

CHECKPOINT_OFF = "off"
STRIDE = {"every-block": 1, "every-second-block": 2}
"""Of the layers, the ones whose index is a multiple of this are checkpointed."""
INSIDE_A_LAYER = frozenset({"attention", "mlp"})
"""Scopes that are smaller than a layer: checkpointing a layer then lies outside the compiled region."""

_SENTENCES = {
    CHECKPOINT_OFF: "Every layer keeps its activations for the backward.",
    "every-block": "Every layer keeps its input alone and runs its forward again in the backward.",
    "every-second-block": "Layers 0, 2, 4 and so on keep their input alone; the others keep all activations.",
}


class Checkpointing(Knob):
    """Non-reentrant checkpointing of whole decoder layers, inside the compiled region where there is one."""

    name = "checkpointing"
    values = tuple(_SENTENCES)
    baseline = CHECKPOINT_OFF
    stage = Stage.WRAP
    ordinal = True
    help = "gradient checkpointing of decoder layers: off, every one, every second one"

    def conflict(self, strategy: Strategy, target: Target) -> Conflict | None:
        """Refuse checkpointing around CUDA graphs, and a second layer where there is none."""
        value = strategy[self.name]
        if value == CHECKPOINT_OFF:
            return None
        if strategy["mode"] in GRAPH_MODES and strategy["scope"] in INSIDE_A_LAYER:
            scope = strategy["scope"]
            return impossible(
                f"with scope={scope} checkpointing lies outside the compiled region, and CUDA graphs fail there"
            )
        if value == "every-second-block" and target.layers == 1:
            return pointless("the model has one layer, so every-second-block repeats every-block")
        return None

    def recomputes(self, value: Value) -> bool:
        """Every value but off does nothing else."""
        return value != CHECKPOINT_OFF

    def apply(self, build: Build, value: Value) -> None:
        """Replace the `forward` of the chosen layers.

        Raises:
            ValueError: the model has no decoder layers to checkpoint.
        """
        if value == CHECKPOINT_OFF:
            return
        chosen = build.layers[:: STRIDE[str(value)]]
        if not chosen:
            raise ValueError("checkpointing: the model has no decoder layers")
        for layer in chosen:
            layer.forward = checkpointed(layer.forward)
        _switch_cache_off(build.model)
        build.remove_input_grad_hooks()

    def explain(self, value: Value) -> str:
        """Say what is kept."""
        return _SENTENCES[str(value)]

    def export(self, value: Value, trainer: str) -> dict[str, Any] | None:
        """Spell it for a Trainer; `every_n_layers` is there from transformers 5.24 on, under the new name alone."""
        if trainer != "trainer":
            return None
        if value == CHECKPOINT_OFF:
            return {"gradient_checkpointing": False}
        reentrant = {"use_reentrant": False}
        if value == "every-block":
            return {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": reentrant}
        every_second: dict[str, Any] = {"every_n_layers": 2, **reentrant}
        return {"activation_checkpointing": True, "activation_checkpointing_kwargs": every_second}


def checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return `forward` with its activations computed again in the backward.

    A plain function on purpose: dynamo traces it, while it skips a layer whose `forward` is a
    `functools.partial` and says nothing.
    """
    from torch.utils.checkpoint import checkpoint

    def checkpointed_forward(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return checkpointed_forward


def _switch_cache_off(model: Any) -> None:
    # A layer that writes keys and values into a cache would write them twice: forward and recomputation.
    config = getattr(model, "config", None)
    if config is not None and getattr(config, "use_cache", False):
        config.use_cache = False


KNOB = Checkpointing()
