"""Nothing is flagged that is healthy: dropout, one harmless compile more, a slow first minute, and the like."""

from __future__ import annotations

from typing import Any

import pytest

from tests.field_reports.running import LAYER, WHOLE, Ran, run, users
from tests.tuner.made import record_of, result_of
from tests.tuner.test_exclusions import Told
from tests.tuner.trials import attempt, request, result
from tests.tuner.worker.test_settle import settle
from tuner.evidence import compile_fault
from tuner.kinds import Flag
from tuner.machine_fault import machine_fault
from tuner.measured import CompileReport, GraphBreak, PhaseRecord
from tuner.outcome import Outcome, classify, user_error
from tuner.workload import Lengths, Workload

pytestmark = pytest.mark.usefixtures("quick_compile")
HARMLESS = {Flag.COLD, Flag.WARM, Flag.NOISY, Flag.UNCHECKED}
"""Said of what is measured, never of a fault; a busy machine makes any step noisy."""
BROKEN = GraphBreak(site="/home/me/model.py:7", reason="print", count=2)


def healthy(found: Ran, reference: Ran | None = None) -> bool:
    """Is it `ok` with nothing to say about it?"""
    verdict = found.verdict(reference.result.parity if reference else None)
    report = found.result.compile
    said = (verdict.kind, verdict.detail, set(verdict.flags) - HARMLESS, found.result.no_effect)
    assert (verdict.outcome, *said) == (Outcome.OK, None, "", set(), {})
    return not report.recompile_limit_hit


# Real trials


@pytest.mark.parametrize("strategy", [{}, LAYER, WHOLE | {"checkpointing": "every-block"}])
def test_dropout(strategy: dict[str, Any]) -> None:
    assert healthy(run(users("dropping"), **strategy), run(users("dropping")))


def test_one_harmless_compile_more() -> None:
    """A first layer whose input needs no gradient is compiled for itself, as under PEFT."""
    found = run(users("frozen_base"), **LAYER)
    assert healthy(found, run(users("frozen_base")))
    assert 1 <= len(found.result.compile.recompiles) <= 2


def test_two_lengths_with_dynamic_auto() -> None:
    lengths = Lengths(kind="list", max=24, values=(12, 24))
    workload = users("plain", lengths=lengths, batch_size=1)
    found = run(workload, steady_steps=20, **LAYER, dynamic="auto", micro_batch=1)
    assert healthy(found) and found.result.compile.recompiles


# Made-up ones


def test_a_slow_first_minute() -> None:
    settled = settle([60.0, 9.0, 2.0, 1.0], activity=[3, 5, 6, 6], before=0)
    assert not settled.active and not settled.rising and settled.level


def test_a_compile_in_the_middle_of_settle() -> None:
    settled = settle([1.0], activity=[1] * 6 + [2], before=1)
    assert not settled.active


def compiled(**report: Any) -> CompileReport:
    return CompileReport(**{"graphs": 3, "chosen_modules": 2, "compiled_modules": 2, "compiled_ops": 12} | report)


@pytest.mark.parametrize(
    "report",
    [
        compiled(),
        compiled(graph_breaks=(BROKEN,)),
        compiled(graph_breaks=(BROKEN,), eager_ops=12),
        compiled(recompiles=("0/0: requires_grad",) * 7),
        compiled(graph_breaks=(BROKEN,), eager_ops=40, compiled_ops=None),
        compiled(cudagraph_skips=1),
    ],
    ids=["plain", "breaks", "half is eager", "seven recompiles", "products unknown", "a graph skipped"],
)
def test_what_is_compiled_well_enough(report: CompileReport) -> None:
    assert compile_fault(report) is None


def test_a_mixture_of_experts_whose_experts_run_one_by_one() -> None:
    report = compiled(graph_breaks=(BROKEN,), eager_ops=3 * 128 * 2, compiled_ops=13)
    assert compile_fault(report, routed=True) is None
    assert compile_fault(report) is not None
    only_the_head = report.model_copy(update={"compiled_ops": 1})
    assert compile_fault(only_the_head, routed=True) is not None


def test_a_quantised_librarys_own_operations_are_no_eager_products() -> None:
    """They are called as operations of the library: with all of them eager there is nothing to count."""
    report = compiled(graph_breaks=(GraphBreak(site="a/site-packages/bitsandbytes/f.py:1", reason="x", count=14),))
    assert compile_fault(report.model_copy(update={"eager_ops": 0, "compiled_ops": 0})) is None


@pytest.mark.parametrize(
    "said",
    [
        "UserWarning: PYTORCH_ALLOC_CONF is set",
        "Loading checkpoint shards: 100 % of 2 GiB",
        "[W] torch._dynamo: recompiling for the second length",
        "Filesystem has 3 GiB free",
    ],
)
def test_what_a_healthy_log_says(said: str) -> None:
    made = request()
    found = attempt(made, result=result(made.trial_uuid), tail=said)
    assert classify(found).outcome is Outcome.OK
    assert machine_fault(found) is None and user_error(found) is None


def test_allocator_retries_before_steady_are_not_tight() -> None:
    made = request()
    phases = (PhaseRecord(phase="first_step", seconds=9.0, alloc_retries=3), PhaseRecord(phase="steady", seconds=3.0))
    verdict = classify(attempt(made, result=result(made.trial_uuid, phases=phases)))
    assert Flag.TIGHT not in verdict.flags


def test_a_trial_without_findings_rules_nothing_out() -> None:
    told = Told()
    broken = result_of(compile=compiled(graph_breaks=(BROKEN,)))
    told.add(record_of(strategy={**LAYER, "micro_batch": 2}, result=broken))
    told.add(record_of(Outcome.OOM, {**LAYER, "fullgraph": True}, result=result_of()))
    told.add(record_of(Outcome.COMPILE_ERROR, {**LAYER, "fullgraph": True, "micro_batch": 2}, result=result_of()))
    assert told.left_out == [] and told.news() == []


def test_a_workload_of_a_plain_model_is_no_mixture() -> None:
    plain: Workload = users("plain")
    assert not plain.is_moe
