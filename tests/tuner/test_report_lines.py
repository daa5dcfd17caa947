"""What the report says of one strategy: its peak's phase, and its peak against its eager twin's."""

from __future__ import annotations

from typing import Any

from tests.tuner.made import record_of, result_of, study_of
from tests.tuner.test_peak_phase import phases
from tests.tuner.test_report import CHECKPOINTING, LAYER, labelled, printed
from tuner.kinds import Flag, Kind, Phase
from tuner.measured import CompileReport, GraphBreak, MemoryLedger
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


def test_graph_breaks_are_told_by_library() -> None:
    site = "/venv/lib/python3.11/site-packages/transformers/modeling_llama.py:120"
    breaks = (GraphBreak(site=site, reason="Data-dependent branching", count=224, library="transformers"),)
    broken = compiled().model_copy(update={"result": result_of(compile=CompileReport(graphs=2, graph_breaks=breaks))})
    report = summary(study_of(), [broken, record_of(strategy=CHECKPOINTING, tokens_per_s=10.0)])
    words = "transformers: 1 site x 224: Data-dependent branching (modeling_llama.py:120)"
    assert report.winner is not None and report.winner.graph_breaks == (words,)
    text = printed(report)
    assert text.count(f"graph breaks: {words}") == 1, "beside the strategy that has them, and no other"


def test_what_had_no_effect_is_told_also_where_its_twin_came_later() -> None:
    why = {"optimizer": "optimizer: no tensor is large enough for 8-bit state"}
    packed = compiled(optimizer="adamw-8bit", **CHECKPOINTING).model_copy(
        update={"result": result_of(no_effect=why), "peak_reserved_bytes": 19 * GIB}
    )
    alone = summary(study_of(), [packed])
    assert alone.winner is not None and alone.winner.no_effect == tuple(why.values())
    twin = compiled(optimizer="adamw-8bit").model_copy(
        update={"peak_reserved_bytes": 19 * GIB, "tokens_per_s": 900.0, "result": result_of()}
    )
    report = summary(study_of(), [packed, twin])
    assert report.winner is not None and report.winner.flags == (Flag.NO_EFFECT,)
    assert "checkpointing: the peak is 20.80 GiB with it and 20.80 GiB without, so nothing is saved" in printed(report)


def test_causes_come_with_what_to_do() -> None:
    lost = record_of(Outcome.WRONG_RESULT, LAYER, kind=Kind.NO_GRADIENT, phase=Phase.FIRST_STEP, number=0, detail="why")
    report = summary(study_of(), [lost])
    (cause,) = report.causes
    assert cause.advice is not None and "use_reentrant=False" in cause.advice
    assert f"what to do: {cause.advice}" in printed(report)
    oom = summary(study_of(), [record_of(Outcome.OOM, LAYER, number=0)])
    assert oom.causes[0].advice is None and "what to do" not in printed(oom)
