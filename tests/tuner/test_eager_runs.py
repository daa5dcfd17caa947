"""The eager runs of a study."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tuner.made import WORKLOAD, record_of, result_of
from tests.tuner.trials import parity
from tuner.eager_runs import eager_spread, reference_record, spread_words, tolerances
from tuner.outcome import Outcome
from tuner.parity import TOLERANCE
from tuner.record import TrialRecord

EVERY = {"checkpointing": "every-block"}


def ran(strategy: dict[str, Any] | None = None, off: float = 0.0, **changes: Any) -> TrialRecord:
    """An eager record whose gradient differs from that of others by a share `off`."""
    found = parity(gradient=(3.0, 4.0 + 5.0 * off))
    return record_of(Outcome.OK, strategy, result=result_of(parity=found, layers=32), **changes)


def standing(*records: TrialRecord) -> dict[str, TrialRecord]:
    return {record.fingerprint: record for record in records}


def test_the_baseline_else_checkpointing_is_the_reference() -> None:
    baseline, other = ran(), ran(EVERY)
    assert reference_record(standing(baseline, other), 0) == baseline
    assert reference_record(standing(other), 0) == other
    assert reference_record(standing(ran(seed=1), record_of(Outcome.OOM, EVERY)), 0) is None


@pytest.mark.parametrize(
    ("record", "spread"),
    [
        (ran({"micro_batch": 2}, 0.12), 0.12),
        (ran(EVERY, 0.05), 0.05),
        (ran({"mode": "default"}, 0.3), None),
        (ran({"optimizer": "adamw-8bit"}, 0.3), None),
        (ran({"micro_batch": 2}, 0.3, seed=1), None),
        (record_of(Outcome.OOM, {"micro_batch": 2}), None),
    ],
    ids=["micro-batch", "checkpointing", "compiled", "8 bits", "another seed", "out of memory"],
)
def test_only_eager_runs_of_the_same_step_count(record: TrialRecord, spread: float | None) -> None:
    found = eager_spread(standing(ran(), record), 0, WORKLOAD)
    assert (found and found.gradient) == (None if spread is None else pytest.approx(spread))


def test_the_tolerance_of_the_workloads_precision_is_widened() -> None:
    found = eager_spread(standing(ran(), ran(EVERY, 0.2)), 0, WORKLOAD)
    precision = WORKLOAD.precision
    assert tolerances(found, WORKLOAD)[precision].gradient == pytest.approx(0.4)
    assert tolerances(None, WORKLOAD) == TOLERANCE


def test_it_is_said_in_one_line() -> None:
    said = spread_words(standing(ran(), ran(EVERY, 0.121)), 0, WORKLOAD)
    assert said == ("eager runs differ from each other by up to 12.1 % in one tensor's gradient here; 48 % is allowed")
    assert spread_words(standing(ran()), 0, WORKLOAD) is None


def test_what_the_table_does_not_allow_widens_nothing() -> None:
    """Each eager run would else widen what the next one is judged by, up to a half."""
    alone = eager_spread(standing(ran(), ran(EVERY, 0.1), ran({"micro_batch": 2}, 0.49)), 0, WORKLOAD)
    assert alone is not None and alone.gradient == pytest.approx(0.1), "of 32 layers 48 % are allowed"
    assert eager_spread(standing(ran(), ran(EVERY, 0.49)), 0, WORKLOAD) is None
