"""What the knobs' tests share: a build of five lines, targets and full strategies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from strategies.knob import CompilePlan, Conflict, Knob, Strategy, Target, Value
from strategies.recipes import complete


@dataclass
class FakeBuild:
    """A `Build` around any object; counts what a knob asks for."""

    model: Any = None
    layers: Sequence[Any] = ()
    environment: dict[str, str] = field(default_factory=dict)
    device_type: str = "cpu"
    micro_batch: int = 1
    warmup_rows: int | None = None
    compile: CompilePlan = field(default_factory=CompilePlan)
    optimizer_class: Any = None
    optimizer_defaults: dict[str, Any] = field(default_factory=dict)
    hooks_removed: int = 0

    def scope_modules(self, scope: str) -> Sequence[Any]:
        return self.layers

    def remove_input_grad_hooks(self) -> None:
        self.hooks_removed += 1


@pytest.fixture
def build() -> FakeBuild:
    return FakeBuild()


@pytest.fixture
def build_of() -> Callable[..., FakeBuild]:
    return FakeBuild


def _cuda(**changes: Any) -> Target:
    known: dict[str, Any] = {
        "device_type": "cuda",
        "batch_size": 8,
        "adapter": "full",
        "multiprocessors": 132,
        "layers": 32,
    }
    return Target(**(known | changes))


@pytest.fixture
def cuda() -> Callable[..., Target]:
    """Make a large card's target; keywords change it."""
    return _cuda


@pytest.fixture
def cpu() -> Target:
    return Target(device_type="cpu", batch_size=4, adapter="full", layers=2)


@pytest.fixture
def full() -> Callable[..., dict[str, Value]]:
    """Make a full strategy of some values and the baselines."""
    return lambda **values: complete(values)


@pytest.fixture
def conflict() -> Callable[[Knob, Strategy, Target], Conflict]:
    """Return the conflict that there must be."""

    def found(knob: Knob, strategy: Strategy, target: Target) -> Conflict:
        result = knob.conflict(strategy, target)
        assert result is not None
        return result

    return found
