"""Which phase set the peak, and through what."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tuner.made import WORKLOAD, record_of
from tuner.kinds import Phase, Replay
from tuner.measured import CompileParts, CompileReport, PhaseRecord
from tuner.peak_phase import peak_of
from tuner.protocol import TrialResult
from tuner.units import GIB
from tuner.workload import Adapter, Workload

LAYER = {"mode": "default", "scope": "layer"}
GRAPHS = {"mode": "reduce-overhead", "scope": "layer"}
COMPILED = CompileReport(graphs=2)


def phases(pools: float | None = None, **allocated: float) -> tuple[PhaseRecord, ...]:
    """Phases of a card by peak allocated in GiB; the allocator gives nothing back, so reserved only rises."""
    reserved, found = 0.0, []
    for name, gib in allocated.items():
        reserved = max(reserved, gib + 0.5)
        pool = None if pools is None else int(pools * GIB)
        found.append(
            PhaseRecord(
                phase=Phase(name), seconds=1.0, allocated_bytes=int(gib * GIB), reserved_bytes=int(reserved * GIB),
                device_bytes=int((reserved + 0.7) * GIB), graph_pool_bytes=pool,
            )
        )  # fmt: skip
    return tuple(found)


def words(
    found: tuple[PhaseRecord, ...], strategy: dict[str, Any], workload: Workload | None = None, **result: Any
) -> str:
    record = record_of(strategy=strategy, result=TrialResult(trial_uuid="u", phases=found, **result))
    peak = peak_of(record, workload)
    assert peak is not None
    return peak.words()


def test_the_sentence_that_people_ask_for() -> None:
    found = phases(load=12, first_step=21.1, settle=18, steady=18)
    tuned = CompileReport(graphs=2, parts=CompileParts(autotuning=30.0))
    assert words(found, LAYER, compile=tuned) == "peak in first_step, 3.10 GiB above steady: autotuning"
    assert words(found, LAYER, compile=COMPILED) == "peak in first_step, 3.10 GiB above steady: compiling"
    by_mode = {"mode": "max-autotune-no-cudagraphs", "scope": "layer"}
    assert words(found, by_mode, compile=COMPILED).endswith(": autotuning")


def test_no_cause_without_evidence() -> None:
    found = phases(load=12, first_step=21.1, settle=18, steady=18)
    assert words(found, {}) == "peak in first_step, 3.10 GiB above steady", "eager compiles nothing"
    assert words(found, LAYER) == "peak in first_step, 3.10 GiB above steady", "no graph was produced"
    warm = CompileReport(graphs=2, parts=CompileParts(autotuning=0.0))
    by_mode = {"mode": "max-autotune-no-cudagraphs", "scope": "layer"}
    assert words(found, by_mode, compile=warm).endswith(": compiling"), "found in the cache, nothing was tuned"


def test_a_cache_that_is_never_given_back_is_no_peak() -> None:
    # Peak device is the same from the first step on; what steady needs is what it allocates.
    assert words(phases(load=12, first_step=19.4, settle=19.41, steady=19.41), LAYER) == "peak in steady itself"


def test_the_optimizers_state_is_born_after_the_first_step() -> None:
    found = phases(load=12, first_step=19.4, settle=19.7, steady=19.7)
    said = words(found, LAYER, optimizer_state_bytes=int(0.31 * GIB))
    assert said == "peak in steady itself: 0.30 GiB above first_step, optimizer state"
    assert words(found, LAYER, optimizer_state_bytes=1024) == "peak in steady itself"


def test_loading_in_4_bits_needs_more_than_training() -> None:
    found = phases(load=9, first_step=7, settle=7, steady=7)
    qlora = WORKLOAD.model_copy(update={"adapter": Adapter.QLORA})
    assert words(found, {}, qlora) == "peak in load, 2.00 GiB above steady: quantising"
    assert words(found, {}, WORKLOAD) == "peak in load, 2.00 GiB above steady"


def test_graphs_hide_their_pools_from_what_is_allocated() -> None:
    hidden = phases(load=12, first_step=19.4, settle=13.9, steady=13.9)
    assert words(hidden, GRAPHS) == "peak in first_step: CUDA graphs hide what steady alone needs"
    pools = phases(pools=6.0, load=12, first_step=19.4, settle=13.9, steady=13.9)
    assert words(pools, GRAPHS) == "peak in steady itself", "5.5 GiB less allocated, 6 GiB in pools"
    small = phases(pools=1.0, load=12, first_step=19.4, settle=13.9, steady=13.9)
    assert words(small, GRAPHS, compile=COMPILED) == "peak in first_step, 4.50 GiB above steady: compiling"


def test_what_settle_and_the_longest_batch_add() -> None:
    found = phases(load=12, first_step=18, settle=20, steady=18)
    captured = CompileReport(graphs=2, parts=CompileParts(graph_capture=2.0))
    assert words(found, LAYER, compile=captured).endswith("2.00 GiB above steady: recording CUDA graphs")
    again = CompileReport(graphs=3, recompiles=("a guard",))
    assert words(found, LAYER, compile=again).endswith("above steady: recompiling")
    longest = phases(load=12, first_step=18, settle=18, steady=18, longest_batch=21)
    above = "peak in longest_batch, 3.00 GiB above steady"
    assert words(longest, {}, peak_replay=Replay.EVALUATION) == f"{above}: an evaluation"
    assert words(longest, {}, peak_replay=Replay.LONGEST) == f"{above}: the longest batch"
    assert words(longest, {}, replays=tuple(Replay)) == above, "nobody knows which"


def test_steady_was_not_reached() -> None:
    record = record_of(strategy={}, result=TrialResult(trial_uuid="u", phases=phases(load=12, first_step=19)))
    peak = peak_of(record)
    assert peak is not None and (peak.phase, peak.above_steady_bytes) == (Phase.FIRST_STEP, None)
    assert peak_of(record_of(strategy={})) is None
    assert peak_of(record_of(strategy={}, result=TrialResult(trial_uuid="u"))) is None


@pytest.mark.parametrize(("first", "said"), [(3, "peak in first_step, 1.00 GiB above steady"), (2, "peak in steady")])
def test_on_a_cpu_resident_memory_tells(first: int, said: str) -> None:
    sizes = {Phase.LOAD: 1, Phase.FIRST_STEP: first, Phase.STEADY: 2}
    found = tuple(PhaseRecord(phase=p, seconds=1.0, device_bytes=size * GIB) for p, size in sizes.items())
    assert words(found, {}).startswith(said)
