"""Checkpointing that saved no memory, seen from the same strategy without it."""

from __future__ import annotations

from collections.abc import Mapping

from strategies.checkpointing import CHECKPOINT_OFF
from strategies.checkpointing import KNOB as CHECKPOINTING
from strategies.knob import Value
from tuner.kinds import Flag
from tuner.outcome import Outcome
from tuner.record import TrialRecord
from tuner.space import canonical, fingerprint
from tuner.units import format_gib

SAVES_FROM = 0.01
"""Of the peak without it: what is saved below this lies within how the allocator rounds."""


def remarked(record: TrialRecord, known: Mapping[str, TrialRecord]) -> TrialRecord:
    """Return `record` with the flag `no_effect`, and why, where its checkpointing saved nothing.

    Args:
        known: what stands for each strategy, by fingerprint.
    """
    why = saved_nothing(record, known.get(fingerprint(without(record.strategy))))
    if why is None or record.result is None or CHECKPOINTING.name in record.result.no_effect:
        return record
    no_effect = {**record.result.no_effect, CHECKPOINTING.name: why}
    return record.model_copy(
        update={
            "flags": tuple(dict.fromkeys([*record.flags, Flag.NO_EFFECT])),
            "detail": "; ".join(no_effect.values()),
            "result": record.result.model_copy(update={"no_effect": no_effect}),
        }
    )


def without(strategy: Mapping[str, Value]) -> dict[str, Value]:
    """Return the same strategy with checkpointing off."""
    return canonical({**strategy, CHECKPOINTING.name: CHECKPOINT_OFF})


def saved_nothing(record: TrialRecord, twin: TrialRecord | None) -> str | None:
    """Return one sentence on checkpointing that saved nothing against its `twin` without; None: it did, or who knows.

    Where resident memory is all that is known (a CPU) nothing is said: it is too coarse to tell.
    """
    if twin is None or record.strategy[CHECKPOINTING.name] == CHECKPOINT_OFF:
        return None
    if {record.outcome, twin.outcome} != {Outcome.OK}:
        return None
    peaks = [
        (record.peak_device_bytes, twin.peak_device_bytes),
        (record.peak_reserved_bytes, twin.peak_reserved_bytes),
    ]
    if not all(_is_as_much(now, before) for now, before in peaks):
        return None
    saved = (_activations(record), _activations(twin))
    if None not in saved and not _is_as_much(*saved):
        return None  # it saves what it is for, and something else sets the peak
    size, against = format_gib(record.peak_device_bytes), format_gib(twin.peak_device_bytes)
    return f"checkpointing: the peak is {size} with it and {against} without, so nothing is saved"


def _is_as_much(now: int | None, before: int | None) -> bool:
    return now is not None and before is not None and now >= (1 - SAVES_FROM) * before


def _activations(record: TrialRecord) -> int | None:
    memory = record.result.memory if record.result else None
    return None if memory is None else memory.activations_bytes
