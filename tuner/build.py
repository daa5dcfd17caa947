"""Put a strategy on a model, stage by stage: the public `tuner.apply`.

The worker builds through `apply` too, so what was measured is what a person's own script gets.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from strategies.knob import Stage
from tuner.applied import Applied, Step
from tuner.layers import BuildConflict, decoder_layers, scope_modules
from tuner.model_build import ModelBuild, OptimizerFactory, Plan
from tuner.process_knobs import environment

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Applied", "BuildConflict", "Plan", "Step", "apply", "decoder_layers", "environment", "scope_modules"]


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
