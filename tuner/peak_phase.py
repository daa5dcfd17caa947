"""Which phase set a trial's peak, by how much and through what: what people ask first."""

from __future__ import annotations

from strategies.knob import COMPILE_OFF, GRAPH_MODES
from tuner.kinds import Phase
from tuner.measured import PhaseRecord
from tuner.protocol import TrialResult
from tuner.record import TrialRecord
from tuner.units import MIB, format_gib
from tuner.workload import Adapter, Frozen, Workload

TOLERANCE_BYTES = 64 * MIB
"""Blocks of the allocator come and go: less than this is no difference between two phases."""
_AFTER_RECORDING = (Phase.SETTLE, Phase.STEADY, Phase.LONGEST_BATCH)
"""Here graphs are recorded and replayed, and the allocator sees little of what they use."""


class PeakPhase(Frozen):
    """The phase that set the peak."""

    phase: Phase
    above_steady_bytes: int | None = None
    """More than the steady phase needed; None: it was not reached, or CUDA graphs hide what it needs."""
    cause: str = ""
    """Only where something measured shows it."""

    def words(self) -> str:
        """For a person: ``peak in first_step, 3.10 GiB above steady: autotuning``."""
        where = "steady itself" if self.phase is Phase.STEADY else str(self.phase)
        above = f", {format_gib(self.above_steady_bytes)} above steady" if self.above_steady_bytes else ""
        return f"peak in {where}{above}" + (f": {self.cause}" if self.cause else "")


def peak_of(record: TrialRecord, workload: Workload | None = None) -> PeakPhase | None:
    """Return which phase set the peak of `record`; None: nothing was measured by phase.

    A caching allocator gives nothing back, so that peak device never falls from phase to phase. On
    a card a phase is therefore judged by its peak allocated, on a CPU by its resident memory.
    """
    result = record.result
    if result is None:
        return None
    graphs = record.strategy.get("mode") in GRAPH_MODES
    needs = {p.phase: need for p in result.phases if (need := _need(p, graphs)) is not None}
    if not needs:
        return None
    reached = {p.phase for p in result.phases}
    if Phase.STEADY in reached and Phase.STEADY not in needs:
        return PeakPhase(phase=_first_at_peak(result), cause="CUDA graphs hide what steady alone needs")
    top = max(needs, key=lambda phase: needs[phase])
    steady = needs.get(Phase.STEADY)
    if steady is None:
        return PeakPhase(phase=top, cause=_cause(top, record, result, workload))
    above = needs[top] - steady
    if above <= TOLERANCE_BYTES:
        return PeakPhase(phase=Phase.STEADY, above_steady_bytes=0, cause=_born_after_first_step(needs, result))
    return PeakPhase(phase=top, above_steady_bytes=above, cause=_cause(top, record, result, workload))


def _need(phase: PhaseRecord, graphs: bool) -> int | None:
    """What the phase needed; None: it cannot be told."""
    allocated, reserved = phase.allocated_bytes, phase.reserved_bytes
    if allocated is None:
        return phase.device_bytes
    if not graphs or phase.phase not in _AFTER_RECORDING:
        return allocated
    if phase.graph_pool_bytes is None or reserved is None:
        return None
    # Replayed graphs use their pools, which count as reserved alone.
    return min(reserved, allocated + phase.graph_pool_bytes)


def _first_at_peak(result: TrialResult) -> Phase:
    """The first phase that took about as much of the device as any."""
    taken = [(p.phase, p.device_bytes or p.reserved_bytes or 0) for p in result.phases]
    most = max(size for _, size in taken)
    return next(phase for phase, size in taken if size >= most - TOLERANCE_BYTES)


def _cause(phase: Phase, record: TrialRecord, result: TrialResult, workload: Workload | None) -> str:
    if phase is Phase.LOAD and workload is not None and workload.adapter is Adapter.QLORA:
        return "quantising"
    if phase in (Phase.WARMUP_BATCH, Phase.FIRST_STEP):
        return _cause_of_compiling(record, result)
    if phase is Phase.SETTLE:
        return _cause_of_settling(result)
    if phase is Phase.LONGEST_BATCH and result.peak_replay is not None:
        return result.peak_replay.words.removeprefix("in ")
    if phase is Phase.LONGEST_BATCH and result.peak_replay is not None:
        return result.peak_replay.words.removeprefix("in ")
    return ""


def _cause_of_compiling(record: TrialRecord, result: TrialResult) -> str:
    mode, parts = str(record.strategy.get("mode", COMPILE_OFF)), result.compile.parts
    if mode == COMPILE_OFF or result.compile.graphs == 0:
        return ""
    tuned = mode.startswith("max-autotune") if parts is None else parts.autotuning > 0
    return "autotuning" if tuned else "compiling"


def _cause_of_settling(result: TrialResult) -> str:
    parts = result.compile.parts
    if parts is not None and parts.graph_capture > 0:
        return "recording CUDA graphs"
    return "recompiling" if result.compile.recompiles else ""


def _born_after_first_step(needs: dict[Phase, int], result: TrialResult) -> str:
    """The optimizer's state counts from the second step on: said where it is most of what steady has more."""
    first, state = needs.get(Phase.FIRST_STEP), result.optimizer_state_bytes
    if first is None or state is None:
        return ""
    rise = needs[Phase.STEADY] - first
    is_it = rise > TOLERANCE_BYTES and rise / 2 <= state <= 2 * rise
    return f"{format_gib(rise)} above first_step, optimizer state" if is_it else ""
