"""A strategy's knobs put on a real model: what they say is collected, then done."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from strategies.knob import GRAPH_MODES, CompilePlan, Severity, Stage, Strategy, Target
from strategies.registry import KNOBS
from tuner.applied import NOT_WARMED_UP, Applied
from tuner.gradients import preallocate_gradients, zero_in_place
from tuner.layers import BuildConflict, decoder_layers, make_traceable, scope_modules, switch_cache_off
from tuner.mismatch import active_dropout, mismatches
from tuner.process_knobs import active_knobs, check_set, otherwise_set
from tuner.space import canonical
from tuner.workload import Workload

if TYPE_CHECKING:
    import torch
    from torch import nn

OptimizerFactory = Callable[..., "torch.optim.Optimizer"]

_INPUT_GRAD_HOOK = re.compile(r"make_inputs?_require_grads?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A strategy and the workload it was measured for."""

    strategy: Strategy
    workload: Workload
    process_environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of the environment in which it was measured; those set otherwise are named, not refused."""


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
        check_set(self.strategy, self.device_type)
        self.unapplied += otherwise_set(self.strategy, self.process_environment)

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
            # Measured without dropout, it was compared with nothing that drops.
            untested_dropout=workload.dropout == 0,
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
        for knob in active_knobs(self.strategy, stage):
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
            preallocate_gradients(params)
            zero_in_place(optimizer)
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


def _of_the_model(dropout: float, workload: Workload) -> str:
    if dropout == workload.dropout:
        return ""
    return f" (the model's dropout is {dropout:g}, the plan was measured with {workload.dropout:g})"
