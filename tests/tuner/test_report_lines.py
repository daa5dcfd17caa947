"""What the report says of one strategy: its peak's phase, and its peak against its eager twin's."""

from __future__ import annotations

from typing import Any

from tests.tuner.made import record_of, study_of
from tests.tuner.test_peak_phase import phases
from tests.tuner.test_report import CHECKPOINTING, LAYER, labelled, printed
from tuner.kinds import Phase
from tuner.measured import MemoryLedger
from tuner.outcome import Outcome
from tuner.protocol import TrialResult
from tuner.record import TrialRecord
from tuner.report import summary
from tuner.report_lines import Line
from tuner.units import GIB, MIB, gib_to_bytes


def line_for(*records: TrialRecord) -> Line:
    found = summary(study_of(), list(records))
    assert found.winner is not None
    return found.winner


def compiled(gib: float = 20.8, **strategy: Any) -> TrialRecord:
    return record_of(strategy=LAYER | strategy, tokens_per_s=1500.0, peak_device_bytes=gib_to_bytes(gib))


def test_the_peak_is_told_against_the_eager_twins() -> None:
    eager = record_of(strategy=CHECKPOINTING)
    found = line_for(eager, compiled(**CHECKPOINTING))
    assert found.twin_ratio is not None and round(found.twin_ratio, 4) == 1.04
    assert "1.04 times its eager twin's peak" in printed(summary(study_of(), [eager, compiled(**CHECKPOINTING)]))
    assert labelled(summary(study_of(), [eager]), "best eager").twin_ratio is None


def test_a_twin_that_is_not_one_tells_nothing() -> None:
    eager = record_of(strategy=CHECKPOINTING)
    assert line_for(eager, compiled()).twin_ratio is None, "without checkpointing it is another strategy's"
    dead = record_of(Outcome.OOM, CHECKPOINTING, peak_device_bytes=22 * GIB)
    assert line_for(dead, compiled(**CHECKPOINTING)).twin_ratio is None, "nobody knows what it would have taken"
    # Eager has no activation memory budget: the baseline saves everything.
    assert line_for(record_of(), compiled(activation_memory_budget=0.5)).twin_ratio is None


def test_the_phase_of_the_peak_is_told() -> None:
    result = TrialResult(trial_uuid="u", phases=phases(load=12, first_step=19, settle=18, steady=18))
    found = [record_of(strategy=LAYER, result=result), record_of(strategy=CHECKPOINTING, tokens_per_s=10.0)]
    report = summary(study_of(), found)
    assert report.winner is not None and report.winner.peak is not None
    assert report.winner.peak.phase is Phase.FIRST_STEP and report.winner.peak.above_steady_bytes == GIB
    text = printed(report)
    assert "peak in first_step, 1.00 GiB above steady" in text
    assert "memory in GiB" in text and "peak device" in text and "gradients" not in text


def test_the_memory_of_a_small_model_is_shown_in_mib() -> None:
    memory = MemoryLedger(parameters_bytes=3 * MIB // 2)
    result = TrialResult(trial_uuid="u", phases=phases(steady=0.1), memory=memory)
    text = " ".join(printed(summary(study_of(), [record_of(result=result, peak_device_bytes=400 * MIB)])).split())
    assert "memory in MiB" in text and "parameters 1.5" in text and "peak device 400.0" in text
