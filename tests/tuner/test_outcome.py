"""One table decides what happened: every row of it, and every pair that could be taken for another."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from tests.tuner.trials import attempt, parity, request, result
from tuner.kinds import FailureClass, Flag, KillReason, Kind, Phase, Replay
from tuner.measured import CompileReport, GraphBreak, Parity, PhaseRecord
from tuner.outcome import Outcome, Verdict, classify, classify_twin, user_error
from tuner.protocol import Event, Failure, TrialResult
from tuner.units import GIB
from tuner.workload import Precision, Workload

WARNING = "[W caching_allocator] could not get another 640 MB block, 0.1 GiB left on the device"

GOOD = CompileReport(graphs=2, chosen_modules=4, compiled_modules=4)
LAYER = {"mode": "default", "scope": "layer"}


def measured(**fields: Any) -> TrialResult:
    return result("a", **fields)


def failed(failure_class: FailureClass, **fields: Any) -> TrialResult:
    usual = {"failure_class": failure_class, "phase": Phase.FIRST_STEP, "type": "builtins.RuntimeError"}
    return result("a", throughput=None, failure=Failure(**(usual | {"detail": "API call failed"} | fields)))


def events(phase: Phase, step: int | None = None) -> tuple[Event, ...]:
    first = Event(time=time.time(), event="phase", phase=Phase.LOAD)
    return (first, Event(time=time.time(), event="phase" if step is None else "step", phase=phase, step=step))


def test_ok() -> None:
    verdict = classify(attempt(result=measured(parity=parity())), reference=parity())
    assert (verdict.outcome, verdict.detail, verdict.phase) == (Outcome.OK, "", None)
    assert verdict.peak_device_bytes == GIB // 2


@pytest.mark.parametrize(("replay", "where"), [(Replay.EVALUATION, " in an evaluation"), (None, "")])
def test_over_budget_in_a_replay_names_it(replay: Replay | None, where: str) -> None:
    phases = (PhaseRecord(phase=Phase.STEADY, seconds=1.0), PhaseRecord(phase=Phase.LONGEST_BATCH, seconds=1.0))
    peaks = {Phase.STEADY: GIB // 2, Phase.LONGEST_BATCH: 2 * GIB}
    found = classify(attempt(result=measured(phases=phases, peak_replay=replay), device_peaks=peaks))
    assert (found.outcome, found.phase) == (Outcome.OVER_BUDGET, Phase.LONGEST_BATCH)
    assert found.detail == f"peak device 2.00 GiB{where} is above the limit of 1.00 GiB"


def test_a_worker_that_is_killed_in_a_replay_is_told_with_it() -> None:
    words = Replay.EVALUATION.words
    told = (*events(Phase.LONGEST_BATCH), Event(time=1.0, event="note", phase=Phase.LONGEST_BATCH, note=words))
    found = classify(attempt(kill_reason=KillReason.MEMORY, exit_code=None, exit_signal=9, events=told))
    assert (found.outcome, found.phase) == (Outcome.OOM, Phase.LONGEST_BATCH)
    assert found.detail.endswith("(longest_batch, in an evaluation)")


@pytest.mark.parametrize("seen_by", ["worker", "parent"])
def test_over_budget_whoever_saw_the_peak(seen_by: str) -> None:
    own = PhaseRecord(phase=Phase.SETTLE, seconds=1.0, device_bytes=2 * GIB if seen_by == "worker" else None)
    peaks = {Phase.STEADY: GIB // 2} | ({Phase.SETTLE: 2 * GIB} if seen_by == "parent" else {})
    verdict = classify(attempt(result=measured(phases=(own,)), device_peaks=peaks))
    assert (verdict.outcome, verdict.phase) == (Outcome.OVER_BUDGET, Phase.SETTLE)
    assert verdict.peak_device_bytes == 2 * GIB and "2.00 GiB" in verdict.detail and "1.00 GiB" in verdict.detail


def test_a_peak_at_the_limit_fits() -> None:
    assert classify(attempt(result=measured(), device_peaks={Phase.STEADY: GIB})).outcome is Outcome.OK


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        (KillReason.CANCELLED, Outcome.INTERRUPTED),
        (KillReason.FOREIGN, Outcome.DEVICE_NOT_CLEAN),
        (KillReason.DEADLINE, Outcome.TIMEOUT),
        (KillReason.MEMORY, Outcome.OOM),
        (KillReason.HOST_MEMORY, Outcome.OOM),
    ],
)
def test_the_parents_reasons(reason: KillReason, outcome: Outcome) -> None:
    killed = attempt(
        request(deadlines={Phase.SETTLE: 90.0}),
        kill_reason=reason,
        exit_code=None,
        exit_signal=9,
        events=events(Phase.SETTLE, 3),
        foreign="4711 train.py" if reason is KillReason.FOREIGN else None,
        tail=WARNING,
    )
    verdict = classify(killed)
    assert (verdict.outcome, verdict.phase, verdict.kind) == (outcome, Phase.SETTLE, None)
    expected = {KillReason.FOREIGN: "4711 train.py", KillReason.DEADLINE: "1 m 30 s", KillReason.MEMORY: "0.50 GiB"}
    assert expected.get(reason, "settle, after step 3") in verdict.detail


NO_OUTCOME = {FailureClass.USER_CODE, FailureClass.ENVIRONMENT, FailureClass.OTHER}


@pytest.mark.parametrize("failure_class", sorted(set(FailureClass) - NO_OUTCOME))
def test_failures_by_class(failure_class: FailureClass) -> None:
    verdict = classify(attempt(result=failed(failure_class, kind=Kind.RECOMPILE_LIMIT), exit_code=1))
    assert verdict.outcome == Outcome(failure_class.value)
    assert (verdict.phase, verdict.kind, verdict.detail) == (
        Phase.FIRST_STEP,
        Kind.RECOMPILE_LIMIT,
        "API call failed",
    )


def test_user_code_is_no_outcome_of_a_trial() -> None:
    broken = attempt(result=failed(FailureClass.USER_CODE, detail="no such layer"))
    assert user_error(broken) == "builtins.RuntimeError: no such layer"
    assert user_error(attempt(result=failed(FailureClass.OTHER))) is None
    assert user_error(attempt()) is None


def users(detail: str) -> TrialResult:
    return failed(FailureClass.USER_CODE, type="tuner.worker.user_code.UserCodeError", detail=detail)


def test_an_error_in_the_users_function_that_memory_seems_to_have_caused_is_no_wrong_input() -> None:
    hidden = attempt(result=users("f.py:f raised RuntimeError: API call failed"), tail=WARNING)
    assert user_error(hidden) is None
    verdict = classify(hidden)
    assert (verdict.outcome, verdict.kind) == (Outcome.OOM, Kind.SUSPECTED) and WARNING in verdict.detail
    control = attempt(result=users("f.py:f raised RuntimeError: API call failed"), tail="step 3")
    assert user_error(control) is not None
    own = attempt(result=users("f.py:f raised KeyError: 'q_proj'"), tail=WARNING)
    assert user_error(own) is not None, "a mistake of the user's, whatever the log says"


@pytest.mark.parametrize("failure_class", [FailureClass.OTHER, FailureClass.COMPILE_ERROR])
def test_memory_hides_behind_another_error(failure_class: FailureClass) -> None:
    hidden = attempt(result=failed(failure_class), events=events(Phase.FIRST_STEP), tail=f"a\n{WARNING}\nb")
    verdict = classify(hidden)
    assert (verdict.outcome, verdict.kind, verdict.phase) == (Outcome.OOM, Kind.SUSPECTED, Phase.FIRST_STEP)
    assert WARNING in verdict.detail


def test_the_same_error_without_the_warning_is_a_crash() -> None:
    tail = "compiling\nPYTORCH_CUDA_ALLOC_CONF is set\nRuntimeError: API call failed at call.cpp, line 98"
    verdict = classify(attempt(result=failed(FailureClass.OTHER), tail=tail))
    assert (verdict.outcome, verdict.kind) == (Outcome.CRASH, None)


@pytest.mark.parametrize("text", ["CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"])
def test_a_hidden_cause_in_the_traceback(text: str) -> None:
    traceback = f"  File x\n    alloc failed\ntorch.AcceleratorError: {text}\n\nDuring handling …"
    assert classify(attempt(result=failed(FailureClass.OTHER, traceback=traceback))).kind is Kind.SUSPECTED
    source_only = "  File x\n    raise OutOfMemoryError\nValueError: x"
    shown = attempt(result=failed(FailureClass.OTHER, traceback=source_only), tail=source_only)
    assert classify(shown).outcome is Outcome.CRASH


@pytest.mark.parametrize(
    "line",
    [
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes",
        "MemoryError",
        "OSError: [Errno 12] Cannot allocate memory",
        "Warning: allocator flushed its cache: 23.1 GiB reserved, 90.2 MiB free",
        "allocation of 512 MiB failed",
        "cc1plus: failed to allocate 1048576 bytes",
    ],
)
def test_what_allocators_say(line: str) -> None:
    assert classify(attempt(exit_code=1, tail=line)).kind is Kind.SUSPECTED


@pytest.mark.parametrize(
    "line",
    [
        "peak allocated 3.10 GiB, reserved 3.50 GiB",
        "UserWarning: expandable_segments not supported on this platform (CUDAAllocatorConfig.h:28)",
        "failed to parse PYTORCH_CUDA_ALLOC_CONF",
        "RuntimeError: no room left in the memory format table",
        "FAILED to connect",
        "ImportError: libgomp.so.1: cannot allocate memory in static TLS block",
        "OSError: libc10.so: cannot allocate memory in static TLS block",
        "ModuleNotFoundError: No module named 'insufficient memory'",
        "RuntimeError: failed to allocate a port in memory range",
    ],
)
def test_what_only_names_an_allocation(line: str) -> None:
    assert classify(attempt(exit_code=1, tail=line)).outcome is Outcome.CRASH


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"loss": math.nan}, Kind.NAN),
        ({"gradient": (math.nan, 1.0)}, Kind.NAN),
        ({"gradient_norm": math.inf}, Kind.NAN),
        ({"gradient_norm": 0.0, "tensors_without_gradient": 9}, Kind.NO_GRADIENT),
        ({"tensors_without_gradient": 2}, Kind.NO_GRADIENT),
        ({"parameter_changed": False}, Kind.NO_GRADIENT),
        ({"gradient": (4.0, 3.0)}, Kind.NUMERICS),
        ({"loss": 3.0}, Kind.NUMERICS),
    ],
)
def test_wrong_results(fields: dict[str, Any], kind: Kind) -> None:
    verdict = classify(attempt(result=measured(parity=parity(**fields))), reference=parity())
    assert (verdict.outcome, verdict.kind, verdict.phase) == (Outcome.WRONG_RESULT, kind, Phase.FIRST_STEP)
    assert verdict.detail


def test_a_wrong_result_is_wrong_at_every_budget() -> None:
    wrong = attempt(result=measured(parity=parity(loss=math.nan)), device_peaks={Phase.STEADY: 2 * GIB})
    assert classify(wrong).outcome is Outcome.WRONG_RESULT


def test_without_a_reference_numbers_are_not_judged() -> None:
    assert classify(attempt(result=measured(parity=parity(gradient=(4.0, 3.0))))).outcome is Outcome.OK


def compared(strategy: dict[str, Any], reference: Parity | None, **fields: Any) -> bool:
    """Is it ok, and not flagged `unchecked`?"""
    tried = attempt(request(strategy=strategy), result=measured(parity=parity(**fields), compile=GOOD))
    verdict = classify(tried, reference=reference)
    assert verdict.outcome is Outcome.OK
    return Flag.UNCHECKED not in verdict.flags


def test_what_was_compared_with_nothing_says_so() -> None:
    assert compared(LAYER, parity()) and not compared(LAYER, None)
    assert compared({}, None), "the baseline is what others are compared with"
    assert compared({"checkpointing": "every-block"}, None) and not compared({"micro_batch": 2}, None)
    assert Flag.UNCHECKED in classify(attempt(result=measured())).flags
    assert Flag.UNCHECKED not in classify(attempt(result=failed(FailureClass.OTHER))).flags
    assert Flag.UNCHECKED not in classify(attempt()).flags


def test_with_dropout_nothing_can_be_compared_and_it_says_so() -> None:
    other: dict[str, Any] = {"loss": 3.0, "gradient": (4.0, 3.0), "with_dropout": True}
    assert not compared(LAYER, parity(with_dropout=True), **other)
    assert not compared(LAYER, parity(), **other) and not compared(LAYER, parity(with_dropout=True))
    assert not compared({}, None, **other)
    for fields in ({"loss": math.nan}, {"gradient_norm": 0.0}, {"parameter_changed": False}):
        broken = attempt(result=measured(parity=parity(with_dropout=True, **fields)))
        assert classify(broken, reference=parity(with_dropout=True)).outcome is Outcome.WRONG_RESULT
    unreached = attempt(result=measured(parity=parity(with_dropout=True, tensors_without_gradient=2)))
    assert classify(unreached, reference=parity(with_dropout=True)).kind is Kind.NO_GRADIENT


@pytest.mark.parametrize(("precision", "outcome"), [("32-true", Outcome.WRONG_RESULT), ("bf16-mixed", Outcome.OK)])
def test_the_tolerance_goes_by_precision(precision: str, outcome: Outcome) -> None:
    asked = request()
    workload = Workload.model_validate(asked.workload.model_dump() | {"precision": Precision(precision)})
    off_by_4_percent: Parity = parity(gradient=(3.0, 4.2))
    tried = attempt(asked.model_copy(update={"workload": workload}), result=measured(parity=off_by_4_percent))
    assert classify(tried, reference=parity()).outcome is outcome


BREAK = GraphBreak(site="model.py:7", reason="data-dependent", count=1)


@pytest.mark.parametrize(
    ("changes", "outcome", "kind"),
    [
        ({}, Outcome.OK, None),
        ({"graphs": 0, "compiled_modules": 0}, Outcome.COMPILE_NOT_APPLIED, None),
        ({"compiled_modules": 3}, Outcome.COMPILE_NOT_APPLIED, None),
        ({"compiled_modules": 3, "recompile_limit_hit": True}, Outcome.COMPILE_NOT_APPLIED, Kind.RECOMPILE_LIMIT),
        ({"recompile_limit_hit": True}, Outcome.COMPILE_NOT_APPLIED, Kind.RECOMPILE_LIMIT),
        ({"eager_ops": 12}, Outcome.COMPILE_NOT_APPLIED, None),
        ({"eager_ops": 12, "graph_breaks": (BREAK,)}, Outcome.OK, None),
    ],
)
def test_compiled_needs_evidence(changes: dict[str, Any], outcome: Outcome, kind: Kind | None) -> None:
    tried = measured(compile=GOOD.model_copy(update=changes))
    compiled = classify(attempt(request(strategy={"mode": "default"}), result=tried))
    assert (compiled.outcome, compiled.kind) == (outcome, kind)
    assert classify(attempt(request(strategy={"mode": "off"}), result=tried)).outcome is Outcome.OK


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"exit_code": None, "exit_signal": 11}, "SIGSEGV"),
        ({"exit_code": 139}, "SIGSEGV"),
        ({"exit_code": None, "exit_signal": 9, "tail": WARNING}, "kernel"),
        ({"exit_code": 137}, "kernel"),
        ({"exit_code": 1, "tail": "Traceback\nKeyError: 'q_proj'\n"}, "KeyError: 'q_proj'"),
        ({"exit_code": 0}, "exit status 0 in settle, no result"),
        ({"exit_code": 0, "result_error": "result.json is not whole JSON: x"}, "not whole JSON"),
        ({"result": measured(throughput=None)}, "no throughput"),
        ({"result": measured(), "device_peaks": {}}, "no peak device"),
    ],
)
def test_crashes_say_what_was_seen(fields: dict[str, Any], words: str) -> None:
    verdict = classify(attempt(events=events(Phase.SETTLE), **fields))
    assert (verdict.outcome, verdict.phase, verdict.kind) == (Outcome.CRASH, Phase.SETTLE, None)
    assert words in verdict.detail and "\n" not in verdict.detail


def test_without_an_event_it_ended_in_start() -> None:
    assert classify(attempt(exit_code=1)).phase is Phase.START


def test_a_result_stands_whatever_the_exit_was() -> None:
    assert classify(attempt(result=measured(), exit_code=None, exit_signal=9)).outcome is Outcome.OK


@pytest.mark.parametrize("retries", [{"alloc_retries": 2}, {"ooms": 1}])
def test_flags(retries: dict[str, int]) -> None:
    retried = PhaseRecord(phase=Phase.STEADY, seconds=3.0, **retries)
    tried = measured(flags=(Flag.COLD, Flag.NOISY), phases=(retried,), parity=parity())
    verdict = classify(attempt(request(emulated=True), result=tried, shared_card=True), reference=parity())
    assert verdict.flags == (Flag.COLD, Flag.NOISY, Flag.TIGHT, Flag.EMULATED, Flag.SHARED_CARD)
    assert verdict.outcome is Outcome.OK


# Twin tests.


def both(twin: dict[str, Any] | None = None, layers: int = 2, **own: Any) -> Verdict:
    """What a twin test comes to, in bf16."""
    other = None if twin is None else parity(**{"with_dropout": True} | twin)
    result = measured(parity=parity(with_dropout=True, **own), twin_parity=other, throughput=None, layers=layers)
    return classify_twin(attempt(request(twin={"mode": "off"}), result=result))


def test_a_twin_test_compares_under_dropout() -> None:
    fine = both({}, gradient=(3.0, 4.05))
    assert (fine.outcome, fine.kind) == (Outcome.OK, None) and "the gradient by 1.00%" in fine.detail
    wrong = both({}, gradient=(3.0, 4.9))  # 18 %
    assert (wrong.outcome, wrong.kind) == (Outcome.WRONG_RESULT, Kind.NUMERICS)
    assert "the gradient differs from its twin's by 18.00%" in wrong.detail


def test_a_twin_test_needs_no_figures_of_speed() -> None:
    assert both({}).outcome is Outcome.OK


@pytest.mark.parametrize("twin", [None, {"loss": math.nan}, {"gradient_norm": 0.0}])
def test_a_twin_that_gives_nothing_decides_nothing(twin: dict[str, Any] | None) -> None:
    assert both(twin).outcome is Outcome.CRASH


def test_a_strategy_that_is_wrong_by_itself_is_told_as_that() -> None:
    assert both({}, loss=math.nan).kind is Kind.NAN
    assert both({}, gradient_norm=0.0).kind is Kind.NO_GRADIENT


def test_a_twin_test_ends_like_any_trial() -> None:
    died = attempt(request(twin={}), result=failed(FailureClass.OOM))
    assert classify_twin(died).outcome is Outcome.OOM
    assert classify_twin(attempt(kill_reason=KillReason.CANCELLED)).outcome is Outcome.INTERRUPTED
    assert classify_twin(attempt(exit_code=1)).outcome is Outcome.CRASH


def test_what_was_compared_on_a_slice_says_that() -> None:
    tried = attempt(request(strategy=LAYER), result=measured(parity=parity(), compile=GOOD))
    assert classify(tried, on_slice=True).flags == (Flag.CHECKED_ON_SLICE,)
    assert classify(tried, reference=parity(), on_slice=True).flags == ()


def test_another_optimizers_later_losses_are_its_own() -> None:
    later = parity(losses=(2.0, 3.0))
    for optimizer, outcome in (("adamw", Outcome.WRONG_RESULT), ("adamw-8bit", Outcome.OK)):
        asked = request(strategy={"optimizer": optimizer})
        found = classify(attempt(asked, result=measured(parity=later)), reference=parity(losses=(2.0, 2.0)))
        assert found.outcome is outcome
