"""Small workloads, and measurements that have not begun."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tuner.protocol import Event, TrialRequest
from tuner.shapes import SHAPES
from tuner.space import canonical
from tuner.worker.measurement import Measurement
from tuner.workload import Lengths, ModelKind, Precision, Workload

MODELS = Path(__file__).parents[2] / "models" / "small.py"
SMALL = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}


def shaped(shape: str = "tiny", config: dict[str, Any] | None = None, **changes: Any) -> Workload:
    """A workload of a built-in shape, made small."""
    values: dict[str, Any] = {
        "model": shape,
        "model_kind": ModelKind.SHAPE,
        "config": SHAPES[shape] | SMALL | (config or {}),
        "lengths": Lengths.fixed(16),
        "batch_size": 8,
        "precision": Precision.FP32_TRUE,
    }
    return Workload(**values | changes)


def users(function: str = "stack", **changes: Any) -> Workload:
    """A workload of a model from a function of `tests/models/small.py`."""
    return shaped(model=f"{MODELS}:{function}", model_kind=ModelKind.FUNCTION, **changes).model_copy(
        update={"config": None}
    )


def measurement(workload: Workload, events: list[Event] | None = None, **strategy: Any) -> Measurement:
    """A measurement that has not begun, of a short steady phase."""
    request = TrialRequest(
        trial_uuid="a-trial",
        workload=workload,
        strategy=canonical(strategy),
        device_type="cpu",
        limit_bytes=2**40,
        budget_bytes=2**40,
        cache_dir="unused",
        steady_steps=2,
        steady_micro_batches=2,
        steady_seconds=0.01,
    )
    sink = [] if events is None else events
    return Measurement(request=request, emit=sink.append, phase_started=time.time())
