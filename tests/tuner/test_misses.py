"""Why strategies did not make it."""

from __future__ import annotations

from tests.tuner.made import record_of, result_of, study_of
from tuner.kinds import Kind, Phase, Replay
from tuner.misses import causes, nearest_miss, need_bytes
from tuner.outcome import Outcome
from tuner.units import GIB

LAYER = {"mode": "default", "scope": "layer"}


def test_causes_are_counted_by_outcome_kind_and_phase() -> None:
    records = [
        record_of(),
        record_of(Outcome.OOM, phase=Phase.FIRST_STEP, detail="first"),
        record_of(Outcome.OOM, phase=Phase.FIRST_STEP, detail="second"),
        record_of(Outcome.OOM, phase=Phase.SETTLE),
        record_of(Outcome.WRONG_RESULT, kind=Kind.NAN, phase=Phase.FIRST_STEP),
    ]
    found = causes(records)
    assert [(c.outcome, c.kind, c.phase, c.count) for c in found] == [
        (Outcome.OOM, None, Phase.FIRST_STEP, 2),
        (Outcome.OOM, None, Phase.SETTLE, 1),
        (Outcome.WRONG_RESULT, Kind.NAN, Phase.FIRST_STEP, 1),
    ]
    assert (found[0].words, found[0].example) == ("out of memory in first_step", "first")


def test_what_was_replayed_is_a_cause_of_its_own() -> None:
    late = [record_of(Outcome.OOM, phase=Phase.LONGEST_BATCH, detail=f"no more, {r.words}") for r in Replay]
    assert [c.words for c in causes(late)] == [f"out of memory {r.words}" for r in Replay]


def test_the_nearest_miss_says_what_held_memory() -> None:
    blocks = tuple(f"{n}.00 GiB: mine.py:{n} f" for n in range(9, 0, -1))
    dead = record_of(Outcome.OOM, needed_bytes=25 * GIB, result=result_of(largest_blocks=blocks))
    miss = nearest_miss(study_of(), [dead])
    assert miss is not None and miss.held_by == blocks[:3]


def test_the_nearest_miss_needs_least() -> None:
    over = record_of(Outcome.OVER_BUDGET, LAYER, peak_device_bytes=24 * GIB)
    dead = record_of(Outcome.OOM, {}, needed_bytes=30 * GIB)
    miss = nearest_miss(study_of(), [dead, over])
    assert miss is not None
    assert (miss.need_bytes, miss.missed_by_bytes, miss.at_least) == (24 * GIB, 1 * GIB, False)
    assert "layer" in miss.description


def test_an_out_of_memory_needs_what_lies_outside_the_allocator_too() -> None:
    dead = record_of(Outcome.OOM, needed_bytes=25 * GIB, limit_bytes=23 * GIB, cap_bytes=22 * GIB)
    assert need_bytes(dead) == 26 * GIB
    miss = nearest_miss(study_of(), [dead])
    assert miss is not None and miss.at_least and miss.missed_by_bytes == 3 * GIB
    on_a_cpu = dead.model_copy(update={"cap_bytes": None})
    assert need_bytes(on_a_cpu) == 25 * GIB


def test_without_a_known_need_there_is_no_nearest_miss() -> None:
    assert nearest_miss(study_of(), [record_of(Outcome.OOM), record_of(Outcome.CRASH, LAYER)]) is None
    fits_elsewhere = record_of(Outcome.OVER_BUDGET, LAYER, limit_bytes=8 * GIB, peak_device_bytes=9 * GIB)
    assert nearest_miss(study_of(), [fits_elsewhere]) is None, "it says nothing about this limit"
