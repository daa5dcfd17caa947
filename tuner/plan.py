"""The exported plan: the YAML file that `tuner export` writes, and `tuner run` and `tuner.apply` read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, Field, ValidationError

from strategies.knob import Target, Value
from tuner.environment import Environment
from tuner.errors import WrongInput, nearest
from tuner.kinds import Flag, Phase
from tuner.peak_phase import PeakPhase
from tuner.space import canonical, validate
from tuner.workload import Frozen, Workload

PLAN_SCHEMA_VERSION = 1


class Measured(Frozen):
    """What the strategy did when it was measured."""

    tokens_per_s: float
    step_seconds: float | None = None
    """Median of an optimizer step."""
    step_seconds_p10: float | None = None
    step_seconds_p90: float | None = None
    median_within: float | None = None
    """Half the 95 % interval of the median step, over it; none: too few steps to tell."""
    peak_device_bytes: int | None = None
    """The largest of all phases."""
    peak_reserved_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    peak_device_bytes_by_phase: dict[Phase, int] = Field(default_factory=dict)
    peak_phase: PeakPhase | None = None
    """Which of them set the peak, by how much above the steady one, and through what."""
    compile_seconds: float | None = None
    break_even_steps: int | None = None
    """Optimizer steps after which compiling is paid for; none: never, or not known."""
    break_even_against: str | None = None
    """The eager reference of these steps; none where no break-even is known."""
    micro_batch: int | None = None
    accumulation: int | None = None


class ExportedPlan(Frozen):
    """A strategy, what it was measured for, and what came out."""

    schema_version: Literal[1] = 1
    made_by: str
    """Program and version."""
    strategy: dict[str, Value]
    """A value for every knob."""
    use_reentrant: bool | None = None
    """Of torch.utils.checkpoint, false wherever the strategy checkpoints: true trains nothing behind a frozen input."""
    workload: Workload
    measured: Measured
    proved: bool
    """Measured in the final proof: fresh process, cold cache, under the cap."""
    flags: tuple[Flag, ...] = ()
    budget_bytes: int
    card: str | None = None
    """The card that the budget is of, where one was named; else a size was given."""
    limit_bytes: int
    """What peak device may reach."""
    cap_bytes: int | None = None
    """What the allocator may reserve; none on a CPU."""
    environment: Environment
    """Card, driver and versions."""
    process_environment: dict[str, str] = Field(default_factory=dict)
    """Variables of the worker's environment that bear on what was measured: threads, workspaces."""
    seed: int = 0
    study: str
    trial: int | None = None
    """The number in the study; none for a proof of its own."""
    uuid: str
    """Of the record."""
    fingerprint: str
    """Of the strategy."""


def load_plan(path: Path) -> ExportedPlan:
    """Read an exported plan.

    Raises:
        WrongInput: the file cannot be read, is of a newer version, or has a key or value that is not known.
    """
    data = _read_mapping(path)
    version = data.get("schema_version")
    if isinstance(version, int) and version > PLAN_SCHEMA_VERSION:
        raise WrongInput("schema_version", f"must be {PLAN_SCHEMA_VERSION}", version, "a newer version wrote this file")
    try:
        plan = ExportedPlan.model_validate(data)
    except ValidationError as error:
        raise explain_error(error, ExportedPlan) from error
    strategy = canonical(validate(plan.strategy, target_of(plan)))
    return plan.model_copy(update={"strategy": strategy})


def target_of(plan: ExportedPlan) -> Target:
    """Return what a plan tells of the machine and the workload that it was made for."""
    workload = plan.workload
    return Target(
        device_type=plan.environment.device_type,
        batch_size=workload.batch_size,
        adapter=workload.adapter,
        dropout=workload.dropout,
        precision=workload.precision,
        lengths_vary=workload.lengths.vary,
        layers=workload.layers,
        is_moe=workload.is_moe,
    )


def explain_error(error: ValidationError, model: type[BaseModel]) -> WrongInput:
    """Return one sentence for the first thing that is wrong: field, rule, value and nearest name."""
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"]) or "plan"
    if first["type"] == "extra_forbidden":
        key = str(first["loc"][-1])
        return WrongInput(field, "is not a known key", hint=nearest(key, _fields_at(model, first["loc"][:-1])))
    if first["type"] == "missing":
        return WrongInput(field, "is missing")
    return WrongInput(field, first["msg"][0].lower() + first["msg"][1:], first["input"])


def _fields_at(model: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """The names that a mapping at `path` may have."""
    for part in path:
        annotation = model.model_fields[str(part)].annotation if str(part) in model.model_fields else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return []
        model = annotation
    return list(model.model_fields)


def _read_mapping(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text())
    except OSError as error:
        raise WrongInput("plan", f"{path} cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise WrongInput("plan", f"{path} is not a text file") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "it cannot be parsed"
        raise WrongInput("plan", f"{path} is not YAML{where}: {problem}") from error
    if not isinstance(data, dict):
        raise WrongInput("plan", f"{path} must hold keys and values, as `tuner export` writes them")
    return data
