"""Where the memory of a few strategies goes."""

from __future__ import annotations

from tests.tuner.made import record_of
from tuner.kinds import Phase
from tuner.measured import MemoryLedger, PhaseRecord
from tuner.memory_table import memory_columns, remarks
from tuner.outcome import Outcome
from tuner.protocol import TrialResult
from tuner.record import TrialRecord
from tuner.units import GIB

LEDGER = MemoryLedger(
    parameters_bytes=12 * GIB, gradients_bytes=GIB, optimizer_state_bytes=2 * GIB, activations_bytes=4 * GIB
)


def measured(memory: MemoryLedger | None = LEDGER, strategy: dict[str, str] | None = None) -> TrialRecord:
    first = PhaseRecord(phase=Phase.FIRST_STEP, seconds=1.0, alloc_retries=2, ooms=1)
    steady = PhaseRecord(phase=Phase.STEADY, seconds=1.0, graph_pool_bytes=3 * GIB)
    result = TrialResult(trial_uuid="u", phases=(first, steady), memory=memory, optimizer_state_bytes=GIB)
    return record_of(strategy=strategy, result=result, peak_reserved_bytes=19 * GIB)


def test_a_column_holds_what_is_known() -> None:
    (column,) = memory_columns([("winner", measured())])
    assert (column.label, column.parameters_bytes, column.gradients_bytes) == ("winner", 12 * GIB, GIB)
    assert (column.optimizer_state_bytes, column.activations_bytes) == (2 * GIB, 4 * GIB)
    assert (column.graph_pools_bytes, column.outside_bytes, column.peak_device_bytes) == (3 * GIB, GIB, 20 * GIB)


def test_a_record_from_before_the_ledger_shows_the_rest() -> None:
    (column,) = memory_columns([("winner", measured(memory=None))])
    assert column.parameters_bytes is None and column.optimizer_state_bytes == GIB


def test_a_strategy_comes_once_and_what_died_never() -> None:
    winner = measured()
    dead = record_of(Outcome.OOM, {"mode": "default"}, result=winner.result)
    unknown = record_of(strategy={"checkpointing": "every-block"})
    named = [("winner", winner), ("baseline", winner), ("dead", dead), ("unknown", unknown)]
    assert [column.label for column in memory_columns(named)] == ["winner"]


def test_retries_are_said_by_phase() -> None:
    (column,) = memory_columns([("winner", measured())])
    assert column.retries == {Phase.FIRST_STEP: 2} and column.ooms == {Phase.FIRST_STEP: 1}
    said = "winner: the allocator flushed and tried again 2 times in first_step, ran out of memory once in first_step"
    assert remarks(column) == [said]
    assert remarks(column.model_copy(update={"retries": {}, "ooms": {}})) == []


def test_what_stands_for_activations_under_graphs_is_said() -> None:
    memory = LEDGER.model_copy(update={"activations_from": "graph_pools", "backward_peak_bytes": 17 * GIB})
    (column,) = memory_columns([("winner", measured(memory))])
    assert column.backward_peak_bytes == 17 * GIB
    assert remarks(column)[-1] == "winner: its activations are what the pools of its CUDA graphs reserve"
