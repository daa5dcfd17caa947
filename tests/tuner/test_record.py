"""What a record decides, and which record is the best."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tuner.made import record_of
from tuner.kinds import Phase
from tuner.outcome import Outcome
from tuner.record import TrialRecord, best, decides, feasible, standing, worth_another
from tuner.units import GIB

LIMIT, CAP = 23 * GIB, 22 * GIB
LAYER = {"mode": "default", "scope": "layer"}


def decided(record: TrialRecord, limit: int = LIMIT, cap: int | None = CAP, **deadlines: float) -> bool:
    return decides(record, limit_bytes=limit, cap_bytes=cap, deadlines={Phase(k): v for k, v in deadlines.items()})


def test_ok_decides_every_limit_at_or_above_its_peak() -> None:
    record = record_of(peak_device_bytes=20 * GIB)
    assert decided(record, 20 * GIB) and decided(record, 70 * GIB)
    assert not decided(record, 20 * GIB - 1)


def test_over_budget_decides_its_limit_and_lower_ones() -> None:
    record = record_of(Outcome.OVER_BUDGET)
    assert decided(record, LIMIT) and decided(record, 10 * GIB)
    assert not decided(record, LIMIT + 1)


def test_oom_decides_caps_below_its_need() -> None:
    record = record_of(Outcome.OOM, needed_bytes=30 * GIB)
    assert decided(record, 31 * GIB, 30 * GIB - 1)
    assert not decided(record, 31 * GIB, 30 * GIB)


def test_oom_of_an_unknown_need_decides_caps_up_to_its_own() -> None:
    record = record_of(Outcome.OOM)
    assert decided(record, cap=CAP) and not decided(record, cap=CAP + 1)


def test_fragmentation_decides_only_after_it_was_run_once_more() -> None:
    assert not decided(record_of(Outcome.OOM, needed_bytes=CAP - GIB))
    again = record_of(Outcome.OOM, needed_bytes=CAP - GIB, role="retry", number=None)
    assert decided(again) and not decided(again, cap=CAP + 1)


def test_oom_on_a_cpu_decides_limits_up_to_its_own() -> None:
    record = record_of(Outcome.OOM, cap_bytes=None, needed_bytes=LIMIT + GIB)
    assert decided(record, LIMIT, None) and not decided(record, LIMIT + 1, None)


def test_timeout_decides_deadlines_no_longer_than_its_own() -> None:
    record = record_of(Outcome.TIMEOUT, phase=Phase.FIRST_STEP, deadlines={Phase.FIRST_STEP: 180, Phase.LOAD: 60})
    assert decided(record, first_step=180, load=600) and decided(record, first_step=100)
    assert not decided(record, first_step=181)
    assert not decided(record), "no deadline is the longest of all"


@pytest.mark.parametrize(
    ("outcome", "changes", "expected"),
    [
        (Outcome.CRASH, {}, False),
        (Outcome.CRASH, {"role": "retry"}, True),
        (Outcome.DEVICE_NOT_CLEAN, {}, False),
        (Outcome.INTERRUPTED, {}, False),
        (Outcome.CONFLICT, {}, True),
        (Outcome.GRAPH_BREAK, {}, True),
        (Outcome.COMPILE_ERROR, {}, True),
        (Outcome.COMPILE_NOT_APPLIED, {}, True),
        (Outcome.WRONG_RESULT, {}, True),
        (Outcome.UNSTABLE, {}, True),
    ],
)
def test_the_other_outcomes(outcome: Outcome, changes: dict[str, Any], expected: bool) -> None:
    record = record_of(outcome, **changes)
    assert decided(record, 10**15, 10**15) is expected and decided(record, 1, 1) is expected


def test_worth_another() -> None:
    def worth(record: TrialRecord, limit: int = LIMIT, cap: int = CAP) -> bool:
        return worth_another(record, limit_bytes=limit, cap_bytes=cap)

    fragmented = record_of(Outcome.OOM, needed_bytes=CAP - GIB)
    assert worth(fragmented) and not worth(fragmented, cap=CAP - 2 * GIB)
    assert not worth(fragmented.model_copy(update={"role": "retry"}))
    assert not worth(record_of(Outcome.OOM, needed_bytes=CAP + 1)) and not worth(record_of(Outcome.OOM))
    over = record_of(Outcome.OVER_BUDGET)
    assert worth(over, cap=CAP - 1) and not worth(over) and not worth(over, limit=LIMIT - 1, cap=CAP - 1)
    assert not worth(record_of())


def test_best_is_the_fastest_within_the_limit_and_ties_go_to_the_lower_peak() -> None:
    records = [
        record_of(tokens_per_s=1000.0),
        record_of(strategy=LAYER, tokens_per_s=2000.0, peak_device_bytes=22 * GIB),
        record_of(strategy={**LAYER, "dynamic": "true"}, tokens_per_s=2000.0, peak_device_bytes=21 * GIB),
        record_of(Outcome.OVER_BUDGET, {"mode": "default"}, tokens_per_s=9000.0),
        record_of(Outcome.OOM, {"micro_batch": 4}),
    ]
    assert best(records, LIMIT) == records[2]
    assert best(records, 20 * GIB) == records[0]
    assert best(records, 19 * GIB) is None and best([], LIMIT) is None
    assert feasible(records, LIMIT) == [records[2], records[1], records[0]]


def test_the_proof_stands_above_the_trial() -> None:
    baseline = record_of(tokens_per_s=1500.0)
    trial = record_of(strategy=LAYER, tokens_per_s=2000.0)
    slower = record_of(strategy=LAYER, tokens_per_s=1800.0, role="proof", number=None)
    assert best([baseline, trial, slower], LIMIT) == slower
    assert best([baseline, slower, trial], LIMIT) == slower, "a later trial does not outrank a proof"
    failed = record_of(Outcome.OOM, LAYER, role="proof", number=None)
    assert best([baseline, trial, slower, failed], LIMIT) == baseline
    assert best([baseline, trial, failed, slower], LIMIT) == slower, "the latest proof counts"


@pytest.mark.parametrize("outcome", [Outcome.DEVICE_NOT_CLEAN, Outcome.INTERRUPTED])
def test_a_proof_that_the_machine_prevented_says_nothing(outcome: Outcome) -> None:
    trial = record_of()
    assert best([trial, record_of(outcome, role="proof", number=None)], LIMIT) == trial


def test_a_proof_that_crashes_twice_takes_the_strategy_out() -> None:
    def proof(outcome: Outcome) -> TrialRecord:
        return record_of(outcome, role="proof", number=None)

    trial, crash = record_of(), proof(Outcome.CRASH)
    assert best([trial, crash], LIMIT) == trial, "once says nothing yet"
    assert best([trial, crash, proof(Outcome.CRASH)], LIMIT) is None
    cut = proof(Outcome.INTERRUPTED)
    assert best([trial, crash, cut, proof(Outcome.CRASH)], LIMIT) is None
    ok = proof(Outcome.OK)
    assert best([trial, crash, proof(Outcome.CRASH), ok], LIMIT) == ok
    assert best([trial, crash, ok, proof(Outcome.CRASH)], LIMIT) == ok, "the first of another two"


def test_a_timeout_stands_only_under_deadlines_no_longer_than_its_own() -> None:
    trial = record_of()
    late = record_of(Outcome.TIMEOUT, role="proof", phase=Phase.STEADY, deadlines={Phase.STEADY: 300.0})
    assert standing([trial, late], LIMIT) == {late.fingerprint: late}
    assert standing([trial, late], LIMIT, {Phase.STEADY: 300.0}) == {late.fingerprint: late}
    assert standing([trial, late], LIMIT, {Phase.STEADY: 301.0}) == {trial.fingerprint: trial}
    assert standing([late], LIMIT, {Phase.STEADY: 301.0}) == {}


def test_a_report_sees_a_timeout_as_the_latest_search_did() -> None:
    trial = record_of(deadlines={Phase.STEADY: 300.0})
    late = record_of(Outcome.TIMEOUT, role="proof", phase=Phase.STEADY, deadlines={Phase.STEADY: 300.0})
    assert best([trial, late], LIMIT) is None
    longer = record_of(strategy={"mode": "default"}, tokens_per_s=1.0, deadlines={Phase.STEADY: 900.0})
    assert best([trial, late, longer], LIMIT) == trial, "the search that had more time did not hold it against it"
    # A run has deadlines of its own: one that ended too soon refutes nothing, and is no search's time.
    hasty = record_of(Outcome.TIMEOUT, role="run", phase=Phase.STEADY, deadlines={Phase.STEADY: 180.0})
    assert best([trial, hasty], LIMIT) == trial


def test_a_record_of_a_smaller_budget_does_not_hide_an_ok() -> None:
    trial = record_of()
    lower = record_of(Outcome.OOM, limit_bytes=10 * GIB, cap_bytes=9 * GIB)
    assert best([trial, lower], LIMIT) == trial
    assert standing([trial, lower], 10 * GIB) == {lower.fingerprint: lower}


def test_a_retry_stands_above_the_first_launch() -> None:
    retry = record_of(role="retry", number=None)
    assert best([record_of(Outcome.CRASH), retry], LIMIT) == retry
