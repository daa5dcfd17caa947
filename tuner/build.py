"""Put a strategy on a model, stage by stage: the public `tuner.apply`.

The worker builds through `apply` too, so what was measured is what a person's own script gets.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strategies.knob import GRAPH_MODES, CompilePlan, Knob, Stage, Strategy
from strategies.registry import KNOBS
from tuner.errors import ExitCode, TunerError, WrongInput
from tuner.space import canonical
from tuner.workload import Precision, Workload

if TYPE_CHECKING:
    import torch
    from torch import nn

OptimizerFactory = Callable[..., "torch.optim.Optimizer"]

_ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)
_MLP = re.compile(r"mlp|ffn|feed_forward|moe|experts", re.IGNORECASE)
_INPUT_GRAD_HOOK = re.compile(r"make_inputs?_require_grads?")


class BuildConflict(TunerError):
    """This model cannot have this strategy, for a reason that only the model itself shows."""

    exit_code = ExitCode.WRONG_INPUT


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A strategy and the workload it was measured for."""

    strategy: Strategy
    workload: Workload


def environment(strategy: Strategy) -> dict[str, str]:
    """Return the environment variables that `strategy` needs before torch is imported."""
    build = _ProcessBuild()
    for knob in _active(strategy, Stage.PROCESS):
        knob.apply(build, strategy[knob.name])  # type: ignore[arg-type]
    return build.environment


@dataclass(slots=True)
class _ProcessBuild:
    environment: dict[str, str] = field(default_factory=dict)


def apply(model: nn.Module, plan: Plan | str | os.PathLike[str], optimizer_factory: OptimizerFactory | None = None) -> Applied:
    """Put a strategy on `model` and return what a training loop needs.

    Args:
        model: any module with a list of decoder layers, on its device, adapters already in it.
        plan: the path of an exported YAML, or a `Plan`.
        optimizer_factory: ``(params, default_class, **defaults) -> Optimizer``, to use another
            class than the strategy's; it is then named in `Applied.unapplied`.

    Raises:
        BuildConflict: the model has no such layers.
        WrongInput: a variable that must be set before torch loads is not set, or the YAML is unusable.
    """
    if not isinstance(plan, Plan):
        from tuner.plan import load_plan

        exported = load_plan(Path(plan))
        plan = Plan(strategy=exported.strategy, workload=exported.workload)
    build = ModelBuild(model, plan)
    build.check_process()
    for stage in (Stage.WRAP, Stage.COMPILE, Stage.OPTIMIZER, Stage.BATCH):
        build.run_stage(stage)
        if stage is Stage.COMPILE:
            build.compile_modules()
    return build.finish(optimizer_factory)


def decoder_layers(model: nn.Module) -> Sequence[nn.Module]:
    """Return the model's decoder layers: of all lists of alike modules the one with most parameters.

    Raises:
        BuildConflict: there is no such list.
    """
    from torch import nn

    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) and len({type(c) for c in m}) == 1]
    if not lists:
        raise BuildConflict(f"the model {type(model).__name__} has no list of decoder layers (an nn.ModuleList of one class)")
    return list(max(lists, key=lambda found: sum(p.numel() for p in found.parameters())))


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


def _active(strategy: Strategy, stage: Stage) -> list[Knob]:
    return [k for k in KNOBS if k.stage is stage and k.active(strategy)]


class ModelBuild:
    """The `strategies.knob.Build` of a real model: collects what the knobs say, then acts."""

    def __init__(self, model: nn.Module, plan: Plan) -> None:
        self.model, self.workload = model, plan.workload
        self.strategy = canonical(plan.strategy)
        self.device_type: str = next(model.parameters()).device.type
        self.environment: dict[str, str] = {}
        self.micro_batch = 1
        self.warmup_rows: int | None = None
        self.compile = CompilePlan()
        self.optimizer_class: Any = None
        self.optimizer_defaults: dict[str, Any] = {}
        self.done: list[str] = []
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

    def check_process(self) -> None:
        """Raise where a variable that had to be set before torch was imported is not."""
        for name, value in environment(self.strategy).items():
            if os.environ.get(name) != value:
                raise WrongInput(
                    name, f"must be {value!r} in the environment before torch is imported", os.environ.get(name)
                )

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
            module.compile(**self.compile.options)
        self.done.append(f"compiled {len(modules)} module{'s' if len(modules) > 1 else ''} in place")

    def finish(self, factory: OptimizerFactory | None) -> Applied:
        """Make the optimizer and return the result."""
        params = [p for p in self.model.parameters() if p.requires_grad]
        if not params:
            raise BuildConflict("the model has no parameter that requires a gradient")
        optimizer, unapplied = self._optimizer(params, factory)
        accumulation, rest = divmod(self.workload.batch_size, self.micro_batch)
        if rest:
            raise BuildConflict(f"micro_batch {self.micro_batch} does not divide the batch size {self.workload.batch_size}")
        graphs = self.strategy["mode"] in GRAPH_MODES and self.device_type == "cuda"
        preallocate = graphs and accumulation > 1
        if preallocate:
            _preallocate_gradients(params)
            self.done.append("gradients are preallocated and zeroed in place: CUDA graphs with accumulation need it")
        return Applied(
            model=self.model,
            optimizer=optimizer,
            micro_batch=self.micro_batch,
            accumulation=accumulation,
            warmup=self.warmup_rows,
            unapplied=tuple(unapplied),
            done=tuple(self.done),
            precision=self.workload.precision,
            device_type=self.device_type,
            keep_gradients=preallocate,
            records_graphs=graphs,
        )

    def _optimizer(self, params: list[Any], factory: OptimizerFactory | None) -> tuple[torch.optim.Optimizer, list[str]]:
        if factory is None:
            return self.optimizer_class(params, **self.optimizer_defaults), []
        made = factory(params, self.optimizer_class, **self.optimizer_defaults)
        if type(made) is self.optimizer_class:
            return made, []
        return made, [f"optimizer: {type(made).__name__} was used in place of {self.optimizer_class.__name__}"]


def _preallocate_gradients(params: list[Any]) -> None:
    # With `.grad` unset the first backward hands out a tensor that lives in the graph's pool, and
    # the next replay overwrites it (pytorch cudagraph_trees; measured in studies/records).
    import torch

    for param in params:
        param.grad = torch.zeros_like(param)


@dataclass(slots=True, kw_only=True)
class Applied:
    """A model with a strategy on it, and how to train it."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    micro_batch: int
    """Sequences per forward."""
    accumulation: int
    """Forwards per optimizer step: the workload's sequences per step over the micro-batch."""
    warmup: int | None
    """Sequences of a warm-up batch before the first step; None: none."""
    unapplied: tuple[str, ...]
    """What could not be applied, a sentence each."""
    done: tuple[str, ...]
    """What was applied, a sentence each."""
    precision: Precision
    device_type: str
    keep_gradients: bool
    """Gradients are zeroed in place, never set to None."""
    records_graphs: bool
    _scaler: Any = None

    @contextlib.contextmanager
    def step(self) -> Iterator[Step]:
        """One optimizer step: call `Step.backward` for each micro-batch inside, the rest is done here.

        On leaving, the optimizer steps and the gradients are zeroed the way the strategy needs;
        where the block raises, neither happens.
        """
        step = Step(self)
        yield step
        step.finish()

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """Around each forward and its loss: the workload's precision, and a mark for CUDA graphs."""
        import torch

        if self.records_graphs:
            # The last micro-batch's outputs may be overwritten from here on.
            torch.compiler.cudagraph_mark_step_begin()
        dtype = {Precision.BF16_MIXED: torch.bfloat16, Precision.FP16_MIXED: torch.float16}.get(self.precision)
        with torch.autocast(self.device_type, dtype=dtype) if dtype else contextlib.nullcontext():
            yield

    def zero_grad(self) -> None:
        """Zero the gradients: in place where CUDA graphs hold them, else by dropping them."""
        self.optimizer.zero_grad(set_to_none=not self.keep_gradients)

    @property
    def scaler(self) -> Any:
        """The gradient scaler of ``fp16-mixed``; one that does nothing for the others."""
        if self._scaler is None:
            import torch

            self._scaler = torch.amp.GradScaler(self.device_type, enabled=self.precision is Precision.FP16_MIXED)
        return self._scaler


@dataclass(slots=True)
class Step:
    """One optimizer step in progress."""

    applied: Applied
    before_update: Callable[[], None] | None = None
    """Called between the last backward and the optimizer, with unscaled gradients in place."""

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward of one micro-batch; `loss` is its share of the step's mean loss."""
        self.applied.scaler.scale(loss).backward()

    def finish(self) -> None:
        """Unscale, call `before_update`, step, zero the gradients."""
        applied = self.applied
        if self.before_update is not None:
            applied.scaler.unscale_(applied.optimizer)
            self.before_update()
        applied.scaler.step(applied.optimizer)
        applied.scaler.update()
        applied.zero_grad()

