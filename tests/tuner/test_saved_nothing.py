"""Checkpointing that saved nothing: only where that can be told."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tuner.made import record_of, result_of
from tuner.kinds import Flag
from tuner.measured import MemoryLedger
from tuner.outcome import Outcome
from tuner.record import TrialRecord
from tuner.saved_nothing import remarked, saved_nothing
from tuner.units import GIB

LAYER: dict[str, Any] = {"mode": "default", "scope": "layer"}


def ran(checkpointing: str, device: float, reserved: float | None, activations: float | None = None) -> TrialRecord:
    memory = None if activations is None else MemoryLedger(activations_bytes=int(activations * GIB))
    return record_of(
        strategy={**LAYER, "checkpointing": checkpointing},
        peak_device_bytes=int(device * GIB),
        peak_reserved_bytes=None if reserved is None else int(reserved * GIB),
        result=result_of(memory=memory, no_effect={"mode": "mode: recorded no CUDA graph"}),
        flags=(Flag.NO_EFFECT, Flag.EMULATED),
    )


OFF = ran("off", 20.0, 19.0)


@pytest.mark.parametrize("device", [20.0, 19.85, 21.0])
def test_the_same_peak_or_more_is_no_saving(device: float) -> None:
    record = ran("every-block", device, device - 1)
    found = remarked(record, {OFF.fingerprint: OFF})
    assert Flag.NO_EFFECT in found.flags and len(found.flags) == 2
    assert found.result is not None and set(found.result.no_effect) == {"mode", "checkpointing"}
    assert f"the peak is {device:.2f} GiB with it and 20.00 GiB without, so nothing is saved" in found.detail
    assert remarked(found, {OFF.fingerprint: OFF}) == found, "it is said once"


@pytest.mark.parametrize(
    ("record", "twin"),
    [
        (ran("every-block", 19.7, 18.7), OFF),
        (ran("every-block", 20.0, 18.7), OFF),
        (ran("every-block", 20.0, 19.0), None),
        (OFF, OFF),
        (ran("every-block", 20.0, None), ran("off", 20.0, None)),  # a CPU: resident memory is too coarse
        (ran("every-block", 20.0, 19.0, activations=2.0), ran("off", 20.0, 19.0, activations=6.0)),
        (ran("every-block", 20.0, 19.0), OFF.model_copy(update={"outcome": Outcome.OOM})),
        (ran("every-block", 20.0, 19.0).model_copy(update={"outcome": Outcome.OVER_BUDGET}), OFF),
    ],
    ids=["saves", "saves reserved", "alone", "off", "cpu", "another phase sets the peak", "twin died", "over"],
)
def test_what_saves_or_cannot_be_told_is_not_flagged(record: TrialRecord, twin: TrialRecord | None) -> None:
    assert saved_nothing(record, twin) is None


def test_equal_activations_leave_no_doubt() -> None:
    twin = ran("off", 20.0, 19.0, activations=6.0)
    assert saved_nothing(ran("every-block", 20.0, 19.0, activations=6.0), twin) is not None


def test_another_strategy_is_no_twin() -> None:
    other = ran("off", 20.0, 19.0).model_copy(update={"fingerprint": "other"})
    record = ran("every-block", 20.0, 19.0)
    assert remarked(record, {"other": other}) == record
