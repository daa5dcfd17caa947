"""Put a strategy on a model, stage by stage: the public `tuner.apply`.

The worker builds through `apply` too, so what was measured is what a person's own script gets.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strategies.knob import GRAPH_MODES, CompilePlan, Knob, Severity, Stage, Strategy, Target
from strategies.registry import KNOBS
from tuner.applied import NOT_WARMED_UP, Applied, Step
from tuner.errors import WrongInput
from tuner.layers import BuildConflict, decoder_layers, make_traceable, scope_modules, switch_cache_off
from tuner.mismatch import active_dropout, mismatches
from tuner.space import canonical
from tuner.workload import Workload

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["Applied", "BuildConflict", "Plan", "Step", "apply", "decoder_layers", "environment", "scope_modules"]

OptimizerFactory = Callable[..., "torch.optim.Optimizer"]

ALLOCATOR, ALLOCATOR_BEFORE = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
"""torch reads the second, older name where the first is not set (c10/core/AllocatorConfig.cpp)."""
_INPUT_GRAD_HOOK = re.compile(r"make_inputs?_require_grads?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A strategy and the workload it was measured for."""

    strategy: Strategy
    workload: Workload
    process_environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of the environment in which it was measured; those set otherwise are named, not refused."""


def environment(strategy: Strategy) -> dict[str, str]:
    """Return the environment variables that `strategy` needs before torch is imported."""
    build = _ProcessBuild()
    for knob in _active(strategy, Stage.PROCESS):
        knob.apply(build, strategy[knob.name])  # type: ignore[arg-type]
    return build.environment


@dataclass(slots=True)
class _ProcessBuild:
    environment: dict[str, str] = field(default_factory=dict)


def apply(
    model: nn.Module, plan: Plan | str | os.PathLike[str], optimizer_factory: OptimizerFactory | None = None
) -> Applied:
    """Put a strategy on `model` and return what a training loop needs.

    Args:
        model: any module with a list of decoder layers, on its device, adapters already in it.
        plan: the path of an exported YAML, or a `Plan`.
        optimizer_factory: ``(params, default_class, **defaults) -> Optimizer``, to use another
            class than the strategy's; it is then named in `Applied.unapplied`.

    Raises:
        BuildConflict: the model has no such layers, or its dropout makes the strategy wrong.
        WrongInput: a variable that must be set before torch loads is not set, or the YAML is unusable.
    """
    if not isinstance(plan, Plan):
        from tuner.plan import load_plan

        exported = load_plan(Path(plan))
        plan = Plan(
            strategy=exported.strategy,
            workload=exported.workload,
            process_environment=exported.process_environment,
        )
    build = ModelBuild(model, plan)
    build.check_process()
    build.check_model()
    build.switch_cache_off()
    build.switch_own_checkpointing_off()
    for stage in (Stage.WRAP, Stage.COMPILE, Stage.OPTIMIZER, Stage.BATCH):
        build.run_stage(stage)
        if stage is Stage.COMPILE:
            build.compile_modules()
    return build.finish(optimizer_factory)


def _active(strategy: Strategy, stage: Stage) -> list[Knob]:
    return [k for k in KNOBS if k.stage is stage and k.active(strategy)]


class ModelBuild:
    """The `strategies.knob.Build` of a real model: collects what the knobs say, then acts."""

    def __init__(self, model: nn.Module, plan: Plan) -> None:
        self.model, self.workload = model, plan.workload
        self.process_environment = plan.process_environment
        self.strategy = canonical(plan.strategy)
        self.device_type: str = next(model.parameters()).device.type
        self.environment: dict[str, str] = {}
        self.micro_batch = 1
        self.warmup_rows: int | None = None
        self.compile = CompilePlan()
        self.optimizer_class: Any = None
        self.optimizer_defaults: dict[str, Any] = {}
        self.done: list[str] = []
        self.unapplied: list[str] = []
        self._layers: Sequence[nn.Module] | None = None

    @property
    def layers(self) -> Sequence[nn.Module]:
        """The decoder layers, in order."""
        if self._layers is None:
            self._layers = decoder_layers(self.model)
        return self._layers

    def scope_modules(self, scope: str) -> Sequence[nn.Module]:
        """The modules that `scope` names."""
        return scope_modules(self.model, scope)

    def remove_input_grad_hooks(self) -> None:
        """Take the `requires_grad_` hooks off the input embedding; non-reentrant checkpointing needs none.

        With them a whole-model compile breaks four to seven times (transformers
        `enable_input_require_grads`, peft `prepare_model_for_gradient_checkpointing`).
        """
        for module in self.model.modules():
            hooks = module._forward_hooks
            for handle, hook in list(hooks.items()):
                if _INPUT_GRAD_HOOK.search(getattr(hook, "__name__", "")):
                    del hooks[handle]
                    self.done.append(f"took the requires_grad_ hook off {type(module).__name__}")

    def switch_cache_off(self) -> None:
        """Train without a KV cache, whatever the strategy."""
        if switch_cache_off(self.model):
            self.done.append("switched the KV cache off (config.use_cache): training has no use for it")

    def switch_own_checkpointing_off(self) -> None:
        """Leave checkpointing to the strategy: a transformers model that already does it would do it twice."""
        switched = [m for m in self.model.modules() if getattr(m, "gradient_checkpointing", False) is True]
        for module in switched:
            module.gradient_checkpointing = False  # type: ignore[assignment]
        if switched:
            self.done.append("switched the model's own checkpointing off: the strategy decides it")
            self.remove_input_grad_hooks()

    def check_process(self) -> None:
        """Raise where a variable that had to be set before torch was imported is not; name what else differs.

        Raises:
            WrongInput: naming the variable and its value.
        """
        needed = environment(self.strategy)
        for name, value in needed.items():
            if not _settings(value).items() <= _settings(_set_to(name)).items():
                rule = f"must be {value!r} in the environment before torch is imported"
                raise WrongInput(name, rule, os.environ.get(name))
        self._refuse_expandable_segments()
        for name, value in self.process_environment.items():
            if name not in needed and os.environ.get(name) != value:
                found = os.environ.get(name)
                self.unapplied.append(
                    f"{name}: measured with {value!r}, here it is {found!r}"
                    if found is not None
                    else f"{name}: measured with {value!r}, here it is not set"
                )

    def _refuse_expandable_segments(self) -> None:
        # Only a card's allocator reads it, and only from the environment does it change what was measured.
        if self.device_type != "cuda" or self.strategy["expandable_segments"]:
            return
        if _settings(_set_to(ALLOCATOR)).get("expandable_segments", "").lower() == "true":
            name = ALLOCATOR if ALLOCATOR in os.environ else ALLOCATOR_BEFORE
            rule = "must not switch expandable_segments on: the plan was measured without"
            raise WrongInput(name, rule, os.environ.get(name))

    def check_model(self) -> None:
        """Note in what the model differs from the plan's; raise where that makes the strategy wrong."""
        dropout = active_dropout(self.model)
        target = self._target(dropout)
        for knob in KNOBS:
            conflict = knob.conflict(self.strategy, target) if knob.active(self.strategy) else None
            if conflict is not None and conflict.severity is Severity.IMPOSSIBLE:
                raise BuildConflict(f"{knob.name}: {conflict.reason}{_of_the_model(dropout, self.workload)}")
        self.unapplied += mismatches(self.model, self.workload, dropout, self._layer_count())

    def _target(self, dropout: float) -> Target:
        workload = self.workload
        return Target(
            device_type=self.device_type,
            batch_size=workload.batch_size,
            adapter=workload.adapter,
            dropout=dropout,
            precision=workload.precision,
            lengths_vary=workload.lengths.vary,
            layers=self._layer_count(),
            is_moe=workload.is_moe,
        )

    def _layer_count(self) -> int | None:
        try:
            return len(self.layers)
        except BuildConflict:
            return None

    def run_stage(self, stage: Stage) -> None:
        """Apply the active knobs of one stage, in the order of the registry."""
        for knob in _active(self.strategy, stage):
            value = self.strategy[knob.name]
            knob.apply(self, value)
            if value != knob.baseline:
                self.done.append(knob.explain(value))

    def compile_modules(self) -> None:
        """Compile in place, so that the state dict keeps its eager keys."""
        if not self.compile.enabled:
            return
        modules = self.scope_modules(self.compile.scope)
        for module in modules:
            make_traceable(module)
            module.compile(**self.compile.options)
        self.done.append(f"compiled {len(modules)} module{'s' if len(modules) > 1 else ''} in place")

    def finish(self, factory: OptimizerFactory | None) -> Applied:
        """Make the optimizer and return the result."""
        params = [p for p in self.model.parameters() if p.requires_grad]
        if not params:
            raise BuildConflict("the model has no parameter that requires a gradient")
        optimizer, unapplied = self._optimizer(params, factory)
        if self.warmup_rows is not None:
            unapplied.append(NOT_WARMED_UP)
        accumulation, rest = divmod(self.workload.batch_size, self.micro_batch)
        if rest:
            size = self.workload.batch_size
            raise BuildConflict(f"micro_batch {self.micro_batch} does not divide the batch size {size}")
        graphs = self.strategy["mode"] in GRAPH_MODES and self.device_type == "cuda"
        preallocate = graphs and accumulation > 1
        if preallocate:
            _preallocate_gradients(params)
            _zero_in_place(optimizer)
            self.done.append("gradients are preallocated and zeroed in place: CUDA graphs with accumulation need it")
        return Applied(
            model=self.model,
            optimizer=optimizer,
            micro_batch=self.micro_batch,
            accumulation=accumulation,
            warmup=self.warmup_rows,
            unapplied=(*self.unapplied, *unapplied),
            done=tuple(self.done),
            precision=self.workload.precision,
            device_type=self.device_type,
            keep_gradients=preallocate,
            records_graphs=graphs,
        )

    def _optimizer(
        self, params: list[Any], factory: OptimizerFactory | None
    ) -> tuple[torch.optim.Optimizer, list[str]]:
        if factory is None:
            return self.optimizer_class(params, **self.optimizer_defaults), []
        made = factory(params, self.optimizer_class, **self.optimizer_defaults)
        if type(made) is self.optimizer_class:
            return made, []
        return made, [f"optimizer: {type(made).__name__} was used in place of {self.optimizer_class.__name__}"]


def _set_to(name: str) -> str:
    """The value of a variable; of the allocator's under its older name too."""
    older = os.environ.get(ALLOCATOR_BEFORE, "") if name == ALLOCATOR else ""
    return os.environ.get(name, older)


def _settings(text: str) -> dict[str, str]:
    """Split ``name:value,name:value``; a value that is no such list is one setting of its own."""
    pairs = (part.strip().partition(":") for part in text.split(","))
    return {name.strip(): value.strip() for name, _, value in pairs if name}


def _of_the_model(dropout: float, workload: Workload) -> str:
    if dropout == workload.dropout:
        return ""
    return f" (the model's dropout is {dropout:g}, the plan was measured with {workload.dropout:g})"


def _preallocate_gradients(params: list[Any]) -> None:
    # With `.grad` unset the first backward hands out a tensor that lives in the graph's pool, and
    # the next replay overwrites it (pytorch cudagraph_trees; measured in studies/records).
    import torch

    for param in params:
        param.grad = torch.zeros_like(param)


def _zero_in_place(optimizer: torch.optim.Optimizer) -> None:
    # Whoever calls it, and however: dropping a gradient would undo the preallocation.
    original = optimizer.zero_grad

    def zero_grad(set_to_none: bool = False) -> None:
        original(set_to_none=False)

    optimizer.zero_grad = zero_grad  # type: ignore[method-assign]
