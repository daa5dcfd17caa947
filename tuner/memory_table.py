"""Where the memory of a few strategies goes, side by side: what a knob bought."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import Field

from tuner.kinds import Phase
from tuner.measured import MemoryLedger, PhaseRecord
from tuner.outcome import Outcome
from tuner.record import TrialRecord
from tuner.workload import Frozen

PARTS = (
    ("parameters_bytes", "parameters"),
    ("gradients_bytes", "gradients"),
    ("optimizer_state_bytes", "optimizer state"),
    ("activations_bytes", "activations"),
    ("forward_peak_bytes", "peak of the forward"),
    ("backward_peak_bytes", "peak of the backward"),
    ("update_peak_bytes", "peak of the update"),
    ("graph_pools_bytes", "CUDA-graph pools"),
    ("outside_bytes", "outside the allocator"),
    ("peak_device_bytes", "peak device"),
)
"""What is shown of a column, and how it is called."""


class MemoryColumn(Frozen):
    """One strategy's memory. Bytes; None where it is not known."""

    label: str
    parameters_bytes: int | None = None
    gradients_bytes: int | None = None
    optimizer_state_bytes: int | None = None
    activations_bytes: int | None = None
    """The rest of an observed step's peak; it may lie below the peak of the whole run."""
    activations_are_pools: bool = False
    """Under replay the allocator sees nothing, and what the graphs' pools reserve stands for the activations."""
    forward_peak_bytes: int | None = None
    backward_peak_bytes: int | None = None
    update_peak_bytes: int | None = None
    graph_pools_bytes: int | None = None
    outside_bytes: int | None = None
    """Peak device less peak reserved: context, libraries, graphs. None on a CPU."""
    peak_device_bytes: int | None = None
    retries: dict[Phase, int] = Field(default_factory=dict)
    """Times that the allocator flushed and tried again, by phase; phases without are left out."""
    ooms: dict[Phase, int] = Field(default_factory=dict)
    """Out-of-memory errors that the allocator raised, by phase; phases without are left out."""


def memory_columns(named: Iterable[tuple[str, TrialRecord]]) -> tuple[MemoryColumn, ...]:
    """Return a column for each record that was measured to its end; one strategy comes once."""
    found: dict[str, MemoryColumn] = {}
    for label, record in named:
        # What died was not at its peak when it was last looked at.
        ran = record.outcome in (Outcome.OK, Outcome.OVER_BUDGET) and record.result is not None
        if ran and record.fingerprint not in found:
            found[record.fingerprint] = _column(label, record)
    return tuple(found.values())


def _column(label: str, record: TrialRecord) -> MemoryColumn:
    assert record.result is not None
    phases, memory = record.result.phases, record.result.memory or MemoryLedger()
    state = memory.optimizer_state_bytes
    device, reserved = record.peak_device_bytes, record.peak_reserved_bytes
    return MemoryColumn(
        label=label,
        parameters_bytes=memory.parameters_bytes,
        gradients_bytes=memory.gradients_bytes,
        optimizer_state_bytes=record.result.optimizer_state_bytes if state is None else state,
        activations_bytes=memory.activations_bytes,
        activations_are_pools=memory.activations_from == "graph_pools",
        forward_peak_bytes=memory.forward_peak_bytes,
        backward_peak_bytes=memory.backward_peak_bytes,
        update_peak_bytes=memory.update_peak_bytes,
        graph_pools_bytes=max((p.graph_pool_bytes for p in phases if p.graph_pool_bytes is not None), default=None),
        outside_bytes=None if device is None or reserved is None else max(0, device - reserved),
        peak_device_bytes=device,
        retries=_counted(phases, "alloc_retries"),
        ooms=_counted(phases, "ooms"),
    )


def _counted(phases: Sequence[PhaseRecord], name: str) -> dict[Phase, int]:
    return {p.phase: getattr(p, name) for p in phases if getattr(p, name)}


def remarks(column: MemoryColumn) -> list[str]:
    """What has to be known of a column: ``winner: the allocator flushed and tried again 2 times in first_step``."""
    said = [f"flushed and tried again {_times(n)} in {phase}" for phase, n in column.retries.items()]
    said += [f"ran out of memory {_times(n)} in {phase}" for phase, n in column.ooms.items()]
    found = [f"{column.label}: the allocator {', '.join(said)}"] if said else []
    if column.activations_are_pools:
        found.append(f"{column.label}: its activations are what the pools of its CUDA graphs reserve")
    return found


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
