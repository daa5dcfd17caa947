"""Records as rows of our tables."""

from __future__ import annotations

import hashlib
import json
import time

from tuner.environment import Environment
from tuner.measured import PhaseRecord
from tuner.protocol import Failure
from tuner.record import StudyRecord, TrialRecord
from tuner.tables import EnvironmentRow, FailureRow, PhaseRow, StudyRow, TrialRow, WorkloadRow
from tuner.workload import Frozen, Workload


def _json(model: Frozen) -> str:
    # Not model_dump_json: that writes NaN as null, and a loss of NaN is kept as what it is.
    return _text(json.dumps(model.model_dump(mode="json"), ensure_ascii=False))


def _text(value: str) -> str:
    # PostgreSQL takes no NUL in a text, and neither takes half a surrogate pair; logs have both.
    return value.replace("\x00", "").encode(errors="replace").decode()


def trial_row(record: TrialRecord) -> TrialRow:
    """Return the row of a launch, with those of its phases and its failure."""
    # Plain strings: psycopg writes an enum in its own way.
    data, result = record.model_dump(mode="json", exclude={"result"}), record.result
    names = ("uuid", "key", "study", "number", "role", "fingerprint", "outcome", "kind", "phase", "tokens_per_s")
    peaks = ("peak_device_bytes", "peak_reserved_bytes", "peak_allocated_bytes", "compile_seconds")
    limits = ("budget_bytes", "limit_bytes", "cap_bytes", "needed_bytes", "seed", "started_at", "seconds")
    return TrialRow(
        **{name: data[name] for name in (*names, *peaks, *limits)},
        source=_text(record.source),
        strategy=json.dumps(record.strategy),
        flags=" ".join(record.flags),
        detail=_text(record.detail),
        step_seconds=None if result is None or result.throughput is None else result.throughput.step_seconds,
        json=_json(record),
        phases=[] if result is None else [_phase_row(i, phase) for i, phase in enumerate(result.phases)],
        failure=None if result is None or result.failure is None else _failure_row(result.failure),
    )


def _phase_row(position: int, phase: PhaseRecord) -> PhaseRow:
    data = phase.model_dump(mode="json", exclude={"alloc_retries"})
    return PhaseRow(position=position, retries=phase.alloc_retries, **data)


def _failure_row(failure: Failure) -> FailureRow:
    texts = {name: _text(getattr(failure, name)) for name in ("type", "detail", "traceback")}
    return FailureRow(**failure.model_dump(mode="json", exclude={*texts, "replay"}), **texts)


def workload_row(workload: Workload) -> WorkloadRow:
    """Return the row of a workload."""
    return WorkloadRow(
        digest=workload.digest(),
        model=workload.model,
        adapter=str(workload.adapter),
        precision=str(workload.precision),
        max_length=workload.lengths.max,
        batch_size=workload.batch_size,
        description=workload.describe(),
        json=_json(workload),
    )


def environment_row(environment: Environment) -> EnvironmentRow:
    """Return the row of an environment."""
    text = _json(environment)
    return EnvironmentRow(
        digest=hashlib.sha256(text.encode()).hexdigest(),
        device_name=environment.device_name,
        device_type=environment.device_type,
        device_total_bytes=environment.device_total_bytes,
        driver=environment.driver,
        torch=environment.versions.get("torch"),
        json=text,
    )


def study_row(study: StudyRecord, environment_digest: str) -> StudyRow:
    """Return the row of a study that is being used now."""
    return StudyRow(
        name=study.name,
        key=study.key,
        budget_bytes=study.budget_bytes,
        limit_bytes=study.limit_bytes,
        workload_digest=study.workload.digest(),
        environment_digest=environment_digest,
        created_at=study.created_at,
        used_at=time.time(),
        json=_json(study),
    )
