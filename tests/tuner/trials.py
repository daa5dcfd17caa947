"""Builders of requests, results and attempts for the tests of this folder."""

from __future__ import annotations

import sys
import time
import uuid
from pathlib import Path
from typing import Any

from tuner.measured import Parity, PhaseRecord, Throughput
from tuner.protocol import Attempt, TrialRequest, TrialResult
from tuner.units import GIB
from tuner.workload import Lengths, ModelKind, Workload

FAKES = Path(__file__).parents[1] / "fakes"
ROOT = Path(__file__).parents[2]


def workload(**fields: Any) -> Workload:
    return Workload(**({"model": "tiny", "model_kind": ModelKind.SHAPE, "lengths": Lengths.fixed(128)} | fields))


def request(**fields: Any) -> TrialRequest:
    usual = {
        "trial_uuid": uuid.uuid4().hex,
        "workload": workload(),
        "strategy": {"mode": "off"},
        "device_type": "cpu",
        "limit_bytes": GIB,
        "budget_bytes": GIB,
        "cache_dir": "/tmp/no-cache",
    }
    return TrialRequest(**(usual | fields))


def parity(**fields: Any) -> Parity:
    usual = {"loss": 2.0, "gradient": (3.0, 4.0), "gradient_norm": 5.0, "tensors_without_gradient": 0}
    return Parity(**(usual | {"parameter_changed": True} | fields))


def throughput() -> Throughput:
    return Throughput(
        tokens_per_s=100.0, step_seconds=1.0, step_seconds_p10=1.0, step_seconds_p90=1.0, steps=5, tokens_per_step=100.0
    )


def result(trial_uuid: str, **fields: Any) -> TrialResult:
    phases = (PhaseRecord(phase="steady", seconds=3.0),)
    return TrialResult(**({"trial_uuid": trial_uuid, "throughput": throughput(), "phases": phases} | fields))


def attempt(asked: TrialRequest | None = None, **fields: Any) -> Attempt:
    usual = {"request": asked or request(), "exit_code": 0, "started_at": time.time(), "seconds": 1.0}
    return Attempt(**(usual | {"device_peaks": {"steady": GIB // 2}} | fields))


def fake(name: str, path: Path, *arguments: str) -> list[str]:
    """The command line of a fake worker."""
    return [sys.executable, str(FAKES / f"{name}.py"), str(path), *arguments]
