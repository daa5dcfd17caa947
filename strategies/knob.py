"""The contract of a knob, and what a knob may read (`Target`) and touch (`Build`).

Importable without torch, optuna or tuner. A knob imports torch inside `apply` alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, ClassVar, Protocol

from strategies.ruled_out import RuledOut

Value = str | int | float | bool
Strategy = Mapping[str, Value]
"""One value for each knob, by the knob's name."""

COMPILE_OFF = "off"
"""The value of the knob `mode` with which nothing is compiled."""
GRAPH_MODES = frozenset({"reduce-overhead", "max-autotune"})
"""The modes that record CUDA graphs (torch._inductor.list_mode_options)."""


class Stage(IntEnum):
    """The point of building at which a knob is applied, in this order."""

    PROCESS = 0
    """The environment, before torch is imported."""
    LOAD = 1
    ADAPT = 2
    WRAP = 3
    """Checkpointing: before compiling, so that it lies inside the compiled region."""
    COMPILE = 4
    OPTIMIZER = 5
    BATCH = 6


class Severity(StrEnum):
    """What a conflict forbids."""

    IMPOSSIBLE = "impossible"
    """It cannot work here: never launched."""
    POINTLESS = "pointless"
    """It would only repeat another strategy, or is known to lose to one: a search skips it, `run` may run it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """A reason, known before launch, why a strategy makes no sense on a target."""

    severity: Severity
    reason: str
    """One sentence for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Facts about the machine, the model and the workload. None: not known (yet)."""

    device_type: str
    """``cuda`` or ``cpu``."""
    batch_size: int
    """Sequences per optimizer step."""
    adapter: str
    """``full``, ``lora`` or ``qlora``."""
    dropout: float = 0.0
    untested_dropout: bool = False
    """No twin test speaks for this dropout: what recomputes was not compared with what does not."""
    precision: str = "bf16-true"
    lengths_vary: bool = False
    emulated: bool = False
    """A smaller card than the real one is emulated by the cap."""
    multiprocessors: int | None = None
    """Streaming multiprocessors of the card."""
    layers: int | None = None
    """Decoder layers of the model."""
    is_moe: bool = False


@dataclass(slots=True, kw_only=True)
class CompilePlan:
    """The arguments of `torch.compile`, filled by several knobs and used by the engine."""

    scope: str = "whole"
    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of `torch.compile`: mode, dynamic, fullgraph."""
    enabled: bool = False


class Build(Protocol):
    """What a knob may touch while a strategy is put on a model."""

    environment: dict[str, str]
    """Variables to be set before torch is imported (stage PROCESS)."""
    device_type: str
    micro_batch: int
    """Sequences per forward (stage BATCH)."""
    warmup_rows: int | None
    """Sequences of the warm-up batch; None: there is none (stage BATCH)."""
    compile: CompilePlan
    """(stage COMPILE)"""
    optimizer_class: Any
    """A `torch.optim.Optimizer` class (stage OPTIMIZER)."""
    optimizer_defaults: dict[str, Any]

    @property
    def model(self) -> Any:
        """The `torch.nn.Module` that is trained."""
        ...

    @property
    def layers(self) -> Sequence[Any]:
        """The decoder layers, in order."""
        ...

    def scope_modules(self, scope: str) -> Sequence[Any]:
        """The modules that `scope` names; raises where the model has none such."""
        ...

    def remove_input_grad_hooks(self) -> None:
        """Take PEFT's and transformers' `requires_grad_` hooks off the input embedding."""
        ...


class Knob(ABC):
    """One searchable dimension. Subclassed once per file; the file's `KNOB` is the instance.

    `active` and `conflict` may read the knob itself and those before it in the registry, no
    others: that is what lets the space be enumerated branch by branch.
    """

    name: ClassVar[str]
    values: ClassVar[tuple[Value, ...]]
    """In order; the full list, which an Optuna study never changes."""
    baseline: ClassVar[Value]
    """The value that leaves everything off."""
    stage: ClassVar[Stage]
    ordinal: ClassVar[bool] = False
    """Is the order of `values` a scale? Then Optuna sees the index as an integer."""
    version: ClassVar[int] = 1
    """Raised when the meaning of a value changes: old records then no longer match."""
    slow: ClassVar[frozenset[Value]] = frozenset()
    """Values whose compile takes minutes: proposed only with an hour or when asked for."""
    help: ClassVar[str]
    """One line for `tuner knobs`."""

    def domain(self, target: Target) -> tuple[Value, ...]:
        """The values on this target; `values` unless the workload decides them."""
        return self.values

    def active(self, strategy: Strategy) -> bool:
        """Does this knob mean anything beside the ones before it? If not it takes `baseline`."""
        return True

    def conflict(self, strategy: Strategy, target: Target) -> Conflict | None:
        """Why this knob's value cannot work here, or would only repeat another; None: it can."""
        return None

    def recomputes(self, value: Value) -> bool:
        """Does this value compute activations again in the backward? Then random masks may be drawn anew."""
        return False

    def equivalent(self, strategy: Strategy, facts: Mapping[str, Any]) -> tuple[Value, ...]:
        """After a trial `ok`: the other values of this knob known to give the same.

        `facts` has `outcome` (str), `graph_breaks` (int), `graphs` (int), `flags` (list of str),
        `no_effect` (names of knobs that changed nothing) and `plan` (the partitioner's, or None).
        """
        return ()

    def rules_out(self, strategy: Strategy, facts: Mapping[str, Any]) -> RuledOut | None:
        """After a trial, whatever came of it: what it speaks against trying on this workload; None: nothing.

        `facts` as for `equivalent`.
        """
        return None

    @abstractmethod
    def apply(self, build: Build, value: Value) -> None:
        """Put `value` on the build. Called for active knobs only, the baseline included."""

    @abstractmethod
    def explain(self, value: Value) -> str:
        """One sentence for a person: what the value does."""

    def export(self, value: Value, trainer: str) -> dict[str, Any] | None:
        """How `trainer` (``trainer``, ``accelerate``, …) spells the value; None: it cannot."""
        return None


def impossible(reason: str) -> Conflict:
    """A conflict that forbids the strategy on this target."""
    return Conflict(severity=Severity.IMPOSSIBLE, reason=reason)


def pointless(reason: str) -> Conflict:
    """A conflict that a search skips and `run` may run."""
    return Conflict(severity=Severity.POINTLESS, reason=reason)
