"""The strategies known by name: the references, what people advise, and what our records show to be strong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from strategies.knob import Strategy, Value
from strategies.registry import KNOBS, by_name


@dataclass(frozen=True, slots=True)
class Recipe:
    """A strategy known by name and tried early."""

    name: str
    """Short, for records: ``recipe: layer-amb``."""
    advice: str
    """One sentence: who says it, or why it is tried."""
    strategy: Strategy
    """The values that matter; the others take their baseline (`complete`)."""
    largest_micro_batch: bool = False
    """To be tried at the largest micro-batch that fits, not at the one of `strategy`."""
    leanest: bool = False
    """One of the two that must have died of memory before 'nothing fits' is said."""


REFERENCES: tuple[Recipe, ...] = (
    Recipe("baseline", "Everything off: eager, no checkpointing, fused AdamW, micro-batch 1.", {}),
    Recipe("checkpointing", "The forum's fallback: eager, every block checkpointed.", {"checkpointing": "every-block"}),
)

LEANEST_OPTIMIZER = {"full": "adamw-8bit", "lora": "adamw", "qlora": "adamw"}
"""By adapter. Paged states are never the leanest: more of them than the card has free can hang it."""

_LAYER = {"mode": "default", "scope": "layer"}
_LEANEST = (
    Recipe(
        "leanest-eager",
        "The least memory without compiling: every block checkpointed, micro-batch 1.",
        {"checkpointing": "every-block"},
        leanest=True,
    ),
    Recipe(
        "leanest-whole",
        "The least memory with compiling: whole model, every block checkpointed, micro-batch 1.",
        {"mode": "default", "checkpointing": "every-block"},
        leanest=True,
    ),
)
_FIRST: tuple[Recipe, ...] = (
    Recipe(
        "layer-amb",
        "Our records: each layer compiled, saving a little less than the compiler likes.",
        _LAYER | {"activation_memory_budget": 0.9},
    ),
    Recipe(
        "layer-amb-graphs",
        "Our records: the same with CUDA graphs, the fastest of all at the 7B shape.",
        _LAYER | {"mode": "reduce-overhead", "activation_memory_budget": 0.9},
    ),
    Recipe(
        "layer-checkpointing",
        "Often advised: compile each layer and checkpoint every block.",
        _LAYER | {"checkpointing": "every-block"},
    ),
    Recipe("layer", "Often advised: compile each layer alone, which compiles fast.", _LAYER),
    Recipe(
        "checkpointing-largest",
        "The forum's fallback at its best: eager, every block checkpointed, the largest micro-batch that fits.",
        {"checkpointing": "every-block"},
        largest_micro_batch=True,
    ),
)
_LAST = Recipe("whole", "What the documentation shows: torch.compile of the whole model.", {"mode": "default"})


def leanest(adapter: str) -> tuple[Recipe, Recipe]:
    """Return the two leanest recipes, eager and compiled, with the leanest optimizer under `adapter`.

    Raises:
        KeyError: there is no such adapter.
    """
    optimizer: dict[str, Value] = {"optimizer": LEANEST_OPTIMIZER[adapter]}
    eager, whole = (replace(recipe, strategy={**recipe.strategy, **optimizer}) for recipe in _LEANEST)
    return eager, whole


def recipes(adapter: str) -> tuple[Recipe, ...]:
    """Return the recipes under `adapter`, in the order in which they are tried after the references.

    Raises:
        KeyError: there is no such adapter.
    """
    return (*_FIRST, *leanest(adapter), _LAST)


def complete(partial: Mapping[str, Value]) -> dict[str, Value]:
    """Return a value for every knob, in registry order: those of `partial`, else the baselines.

    Raises:
        KeyError: `partial` names no knob of ours.
    """
    for name in partial:
        by_name(name)
    return {knob.name: partial.get(knob.name, knob.baseline) for knob in KNOBS}


RECIPES: tuple[Recipe, ...] = recipes("lora")
"""The recipes in order, as they are with LoRA; under full training `recipes` gives the leanest two 8-bit states."""
