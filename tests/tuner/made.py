"""Records, studies and targets for the tests of what keeps them."""

from __future__ import annotations

import itertools
from typing import Any

from strategies.knob import Target
from tuner.environment import Environment
from tuner.kinds import FailureClass, Flag, Phase
from tuner.measured import PhaseRecord, Throughput
from tuner.outcome import Outcome
from tuner.protocol import Failure, TrialResult
from tuner.record import StudyRecord, TrialRecord
from tuner.space import canonical, fingerprint
from tuner.units import GIB
from tuner.workload import Lengths, ModelKind, Workload

_NUMBERS = itertools.count()
CPU = Target(device_type="cpu", batch_size=4, adapter="full", precision="32-true")
CUDA = Target(device_type="cuda", batch_size=4, adapter="lora", multiprocessors=132)
WORKLOAD = Workload(model="tiny", model_kind=ModelKind.SHAPE, lengths=Lengths.fixed(128), batch_size=4)
ENVIRONMENT = Environment(
    device_name="a card", device_type="cuda", device_total_bytes=80 * GIB, versions={"torch": "2"}
)


def study_of(name: str = "s", **changes: Any) -> StudyRecord:
    """A study with a budget of 24 GiB."""
    return StudyRecord(
        **{
            "name": name,
            "key": "key",
            "budget_bytes": 24 * GIB,
            "limit_bytes": 23 * GIB,
            "workload": WORKLOAD,
            "environment": ENVIRONMENT,
            "created_at": 1.0,
            **changes,
        }
    )


def record_of(outcome: Outcome = Outcome.OK, strategy: dict[str, Any] | None = None, **changes: Any) -> TrialRecord:
    """A launch with plausible figures: 20 GiB and 1000 tokens/s where it ran whole."""
    full = canonical(strategy or {})
    ran = outcome in (Outcome.OK, Outcome.OVER_BUDGET)
    peak = 20 * GIB if outcome is Outcome.OK else 24 * GIB
    values: dict[str, Any] = {
        "uuid": f"uuid-{next(_NUMBERS)}",
        "key": "key",
        "study": "s",
        "strategy": full,
        "fingerprint": fingerprint(full),
        "outcome": outcome,
        "tokens_per_s": 1000.0 if ran else None,
        "peak_device_bytes": peak if ran else None,
        "budget_bytes": 24 * GIB,
        "limit_bytes": 23 * GIB,
        "cap_bytes": 22 * GIB,
        "started_at": 100.0,
        "seconds": 30.0,
    }
    return TrialRecord(**values | changes)


def result_of(first_step_bytes: int = 5 * GIB, failure: Failure | None = None, **changes: Any) -> TrialResult:
    """A result with two phases."""
    phases = (
        PhaseRecord(phase=Phase.LOAD, seconds=2.0, allocated_bytes=GIB, reserved_bytes=2 * GIB, device_bytes=3 * GIB),
        PhaseRecord(phase=Phase.FIRST_STEP, seconds=9.0, device_bytes=first_step_bytes, steps=1, alloc_retries=2),
    )
    return TrialResult(trial_uuid="uuid", phases=phases, failure=failure, **changes)


def throughput_of(tokens_per_s: float = 1000.0) -> Throughput:
    """A steady phase of five steps."""
    return Throughput(
        tokens_per_s=tokens_per_s,
        step_seconds=0.5,
        step_seconds_p10=0.4,
        step_seconds_p90=0.6,
        steps=5,
        tokens_per_step=500.0,
    )


def out_of_memory(**changes: Any) -> Failure:
    """What a worker says of an out-of-memory."""
    values: dict[str, Any] = {
        "failure_class": FailureClass.OOM,
        "phase": Phase.FIRST_STEP,
        "type": "torch.OutOfMemoryError",
        "detail": "needs 2 GiB more",
        "needed_bytes": 25 * GIB,
    }
    return Failure(**values | changes)


def ran(strategy: dict[str, Any], tokens_per_s: float, **changes: Any) -> TrialRecord:
    """A launch of 500 tokens a step."""
    result = result_of(throughput=throughput_of(tokens_per_s))
    return record_of(strategy=strategy, tokens_per_s=tokens_per_s, **{"result": result, **changes})


def compiled(strategy: dict[str, Any], tokens_per_s: float, seconds: float, *flags: Flag, **more: Any) -> TrialRecord:
    """The same of one that compiled for `seconds`."""
    return ran(strategy, tokens_per_s, compile_seconds=seconds, flags=flags, **more)
