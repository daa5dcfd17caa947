"""The strategies that `pairs.py` lays beside the bare script, as the YAML files that `tuner run` reads.

No search stands behind them: the figures are from `facts.md` where there are any, and only say what to expect.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from strategies.knob import Value
from tuner.environment import Environment
from tuner.limits import ASSUMED_OUTSIDE_BYTES, limits
from tuner.plan import ExportedPlan, Measured, load_plan
from tuner.requests import CUBLAS_WORKSPACE
from tuner.shapes import SHAPES
from tuner.space import canonical, fingerprint
from tuner.units import GIB
from tuner.workload import Adapter, Lengths, ModelKind, Precision, Workload

BUDGET_BYTES = 24 * GIB
LAYER = {"mode": "default", "scope": "layer"}
GRAPHS = {"mode": "reduce-overhead", "scope": "layer"}


@dataclass(frozen=True)
class Case:
    """One strategy of the 1B shape."""

    name: str
    strategy: dict[str, Value]
    expected_tokens_per_s: float
    """A guess, for `tuner run`'s own comparison; nothing here is judged by it."""
    expected_seconds: float
    """Of one `tuner run` and three bare runs on the H200."""
    adapter: Adapter = Adapter.LORA
    batch_size: int = 8
    micro_batch: int = 4
    more: dict[str, Any] = field(default_factory=dict)


CASES = (
    Case("1b-lora-eager", {}, 36_000, 70),
    Case("1b-lora-layer-graphs", GRAPHS, 58_000, 100),
    Case("1b-lora-eager-checkpointing", {"checkpointing": "every-block"}, 22_000, 75),
    Case("1b-lora-layer", LAYER, 56_000, 95),
    # One micro-batch a step: gradients of the first would lie beside the logits of the second, above the cap.
    Case("1b-full-eager", {}, 47_000, 60, adapter=Adapter.FULL, batch_size=4),
    Case("1b-lora-layer-half-budget", LAYER | {"activation_memory_budget": 0.5}, 52_000, 95),
    Case("1b-full-eager-8bit", {"optimizer": "adamw-8bit"}, 30_000, 65, adapter=Adapter.FULL, batch_size=4),
)
"""The most telling first: a run that is cut short ends with what is missed least. The last is a spare one."""
CHECK_SECONDS = 35.0
"""The first `tuner run` checks the machine."""


def environment(device_type: str, total_bytes: int, name: str) -> Environment:
    """Return what a plan says of the machine."""
    return Environment(device_name=name, device_type=device_type, device_total_bytes=total_bytes, versions={})  # type: ignore[arg-type]


def workload(case: Case, tiny: bool) -> Workload:
    """Return what a case trains; `tiny`: small enough for a CPU, in 32 bits."""
    shape = "tiny" if tiny else "llama-1b"
    half = Precision.BF16_MIXED if case.adapter is Adapter.LORA else Precision.BF16_TRUE
    return Workload(
        model=shape,
        model_kind=ModelKind.SHAPE,
        config=SHAPES[shape],
        adapter=case.adapter,
        precision=Precision.FP32_TRUE if tiny else half,
        lengths=Lengths.fixed(64 if tiny else 1024),
        batch_size=case.batch_size,
    )


def plan(case: Case, on: Environment, tiny: bool) -> ExportedPlan:
    """Return a plan with the limit and the cap of a first trial under 24 GiB."""
    budget = GIB * 4 if on.device_type == "cpu" else BUDGET_BYTES
    found = limits(budget, on.device_total_bytes, on.device_type, total_bytes=on.device_total_bytes)
    strategy = canonical(case.strategy | {"micro_batch": case.micro_batch})
    return ExportedPlan(
        made_by="tests/gpu/plans.py",
        strategy=strategy,
        workload=workload(case, tiny),
        measured=Measured(tokens_per_s=case.expected_tokens_per_s),
        proved=False,
        budget_bytes=budget,
        limit_bytes=found.limit_bytes,
        cap_bytes=None if on.device_type == "cpu" else found.limit_bytes - ASSUMED_OUTSIDE_BYTES,
        environment=on,
        process_environment={} if on.device_type == "cpu" else {"CUBLAS_WORKSPACE_CONFIG": CUBLAS_WORKSPACE},
        study="pairs",
        uuid=case.name,
        fingerprint=fingerprint(strategy),
    )


def write(case: Case, on: Environment, folder: Path, tiny: bool) -> Path:
    """Write the plan of a case and return its path; what `tuner run` reads is read back once."""
    path = folder / f"{case.name}.yaml"
    path.write_text(yaml.safe_dump(plan(case, on, tiny).model_dump(mode="json"), sort_keys=False))
    load_plan(path)
    return path
