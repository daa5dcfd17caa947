"""What has to be in the environment before torch is imported, and whether it is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from strategies.knob import Knob, Stage, Strategy
from strategies.registry import KNOBS
from tuner.errors import WrongInput

ALLOCATOR, ALLOCATOR_BEFORE = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
"""torch reads the second, older name where the first is not set (c10/core/AllocatorConfig.cpp)."""


def active_knobs(strategy: Strategy, stage: Stage) -> list[Knob]:
    """Return the knobs of one stage that mean something beside the others, in the order of the registry."""
    return [k for k in KNOBS if k.stage is stage and k.active(strategy)]


def environment(strategy: Strategy) -> dict[str, str]:
    """Return the environment variables that `strategy` needs before torch is imported."""
    build = _ProcessBuild()
    for knob in active_knobs(strategy, Stage.PROCESS):
        knob.apply(build, strategy[knob.name])  # type: ignore[arg-type]
    return build.environment


@dataclass(slots=True)
class _ProcessBuild:
    environment: dict[str, str] = field(default_factory=dict)


def check_set(strategy: Strategy, device_type: str) -> None:
    """Raise where a variable that `strategy` needs is not set, or one that it must not have is.

    Raises:
        WrongInput: naming the variable and its value.
    """
    for name, value in environment(strategy).items():
        if not _settings(value).items() <= _settings(_set_to(name)).items():
            rule = f"must be {value!r} in the environment before torch is imported"
            raise WrongInput(name, rule, os.environ.get(name))
    # Only a card's allocator reads it, and only from the environment does it change what was measured.
    if device_type != "cuda" or strategy["expandable_segments"]:
        return
    if _settings(_set_to(ALLOCATOR)).get("expandable_segments", "").lower() == "true":
        name = ALLOCATOR if ALLOCATOR in os.environ else ALLOCATOR_BEFORE
        rule = "must not switch expandable_segments on: the plan was measured without"
        raise WrongInput(name, rule, os.environ.get(name))


def otherwise_set(strategy: Strategy, measured_under: Mapping[str, str]) -> list[str]:
    """Say which variables, other than those that `strategy` needs, are not what it was measured under."""
    found = []
    needed = environment(strategy)
    for name, value in measured_under.items():
        if name in needed or os.environ.get(name) == value:
            continue
        here = os.environ.get(name)
        is_here = f"here it is {here!r}" if here is not None else "here it is not set"
        found.append(f"{name}: measured with {value!r}, {is_here}")
    return found


def _set_to(name: str) -> str:
    """The value of a variable; of the allocator's under its older name too."""
    older = os.environ.get(ALLOCATOR_BEFORE, "") if name == ALLOCATOR else ""
    return os.environ.get(name, older)


def _settings(text: str) -> dict[str, str]:
    """Split ``name:value,name:value``; a value that is no such list is one setting of its own."""
    pairs = (part.strip().partition(":") for part in text.split(","))
    return {name.strip(): value.strip() for name, _, value in pairs if name}
