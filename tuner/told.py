"""What Optuna is told of a record: state, value, constraint and attributes."""

from __future__ import annotations

import math

from optuna.trial import TrialState

from tuner.outcome import Outcome
from tuner.record import TrialRecord
from tuner.space import describe
from tuner.units import GIB

CONSTRAINT = "memory"
"""The one constraint: peak device / limit - 1, at most 0 where it fits."""
FINGERPRINT = "fingerprint"
"""The user attribute by which a trial is known again."""
OUTCOME = "outcome"
DETAIL = "detail"


def state_of(record: TrialRecord) -> TrialState:
    """Return COMPLETE for what was measured, FAIL for what decides nothing, else PRUNED.

    PRUNED, not FAIL, for all that is the strategy's own doing: no sampler learns from failed trials.
    """
    if record.outcome in (Outcome.OK, Outcome.OVER_BUDGET):
        # An invented throughput is never told.
        return TrialState.COMPLETE if _measured(record) else TrialState.PRUNED
    if record.outcome in (Outcome.DEVICE_NOT_CLEAN, Outcome.INTERRUPTED):
        return TrialState.FAIL
    if record.outcome is Outcome.CRASH and record.role != "retry":
        return TrialState.FAIL
    return TrialState.PRUNED


def _measured(record: TrialRecord) -> bool:
    speed = record.tokens_per_s
    return record.peak_device_bytes is not None and speed is not None and math.isfinite(speed)


def value_of(record: TrialRecord) -> float | None:
    """Return tokens per second where the trial is COMPLETE, else None."""
    return record.tokens_per_s if state_of(record) is TrialState.COMPLETE else None


def constraints_of(record: TrialRecord, limit_bytes: int) -> dict[str, float]:
    """Return the constraints of a record under a limit: the same ones in the same order for every COMPLETE trial.

    GPSampler reads COMPLETE trials alone, and takes their constraints by position.
    """
    if state_of(record) is not TrialState.COMPLETE or record.peak_device_bytes is None:
        return {}
    return {CONSTRAINT: record.peak_device_bytes / limit_bytes - 1}


def attributes_of(record: TrialRecord) -> dict[str, str | float]:
    """Return the user attributes: scalars that a person reads in the dashboard; what is not known is left out."""
    throughput = record.result.throughput if record.result else None
    texts: dict[str, str | None] = {
        OUTCOME: record.outcome.value,
        "kind": None if record.kind is None else record.kind.value,
        "phase": None if record.phase is None else record.phase.value,
        DETAIL: record.detail.replace("\x00", "") or None,
        "source": record.source,
        "strategy": describe(record.strategy),
        FINGERPRINT: record.fingerprint,
        "uuid": record.uuid,
    }
    figures: dict[str, float | None] = {
        "peak_device_gib": _gib(record.peak_device_bytes),
        "peak_reserved_gib": _gib(record.peak_reserved_bytes),
        "tokens_per_s": record.tokens_per_s,
        "step_ms": None if throughput is None else round(throughput.step_seconds * 1000, 3),
        "compile_s": record.compile_seconds,
    }
    finite = {name: value for name, value in figures.items() if value is not None and math.isfinite(value)}
    return {name: text for name, text in texts.items() if text is not None} | finite


def _gib(size_bytes: int | None) -> float | None:
    return None if size_bytes is None else round(size_bytes / GIB, 3)
