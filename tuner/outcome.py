"""What happened to a trial, decided in one pure function from one table."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from enum import StrEnum

from strategies.knob import COMPILE_OFF
from strategies.recipes import REFERENCES, complete
from tuner import evidence
from tuner.evidence import peak_device_bytes
from tuner.kinds import FailureClass, Flag, KillReason, Kind, Phase
from tuner.measured import Parity
from tuner.parity import TOLERANCE, Tolerance, agreement, fault, is_finite
from tuner.protocol import Attempt, Failure
from tuner.units import format_duration, format_gib
from tuner.workload import Frozen, Precision


class Outcome(StrEnum):
    """The class of what happened to a trial."""

    OK = "ok"
    """It ran whole and peak device is within the limit."""
    OVER_BUDGET = "over_budget"
    """It ran whole and peak device is above the limit."""
    CONFLICT = "conflict"
    """The worker found that this strategy cannot work here."""
    OOM = "oom"
    """Out of memory: the allocator's error, the cap's marker, or the signals that stand for it."""
    GRAPH_BREAK = "graph_break"
    """fullgraph was asked and is not possible."""
    COMPILE_ERROR = "compile_error"
    """dynamo, inductor or Triton failed."""
    COMPILE_NOT_APPLIED = "compile_not_applied"
    """Fewer of the chosen modules are compiled than asked."""
    WRONG_RESULT = "wrong_result"
    """NaN, no gradient, or parity lost."""
    UNSTABLE = "unstable"
    """Never settled, recompiled in `steady`, or memory still rising."""
    TIMEOUT = "timeout"
    """A phase ran into its deadline."""
    CRASH = "crash"
    """None of the others; tried once more at once."""
    DEVICE_NOT_CLEAN = "device_not_clean"
    """The machine, not the strategy."""
    INTERRUPTED = "interrupted"
    """The study ended or was stopped; asked again on resume."""


DECIDED_BY_STRATEGY = frozenset(Outcome) - {Outcome.CRASH, Outcome.DEVICE_NOT_CLEAN, Outcome.INTERRUPTED}
"""Outcomes that are the strategy's own doing."""


class Verdict(Frozen):
    """The outcome of one attempt, with what it was decided from."""

    outcome: Outcome
    kind: Kind | None = None
    phase: Phase | None = None
    """Where it ended; None for `ok`."""
    flags: tuple[Flag, ...] = ()
    detail: str = ""
    """One sentence of cause; of an `ok` what had no effect, empty for a plain one."""
    peak_device_bytes: int | None = None
    """The largest of all phases, of the worker's own figures and the parent's samples."""


_REFERENCES = tuple(complete(recipe.strategy) for recipe in REFERENCES)

_OF_REASON: dict[KillReason, tuple[Outcome, str]] = {
    KillReason.CANCELLED: (Outcome.INTERRUPTED, "the time for it was over, or the search was stopped ({where})"),
    KillReason.FOREIGN: (Outcome.DEVICE_NOT_CLEAN, "others were on the device: {foreign}"),
    KillReason.DEADLINE: (Outcome.TIMEOUT, "a phase took longer than the {deadline} it may take ({where})"),
    KillReason.MEMORY: (Outcome.OOM, "resident memory reached {peak}, above the limit of {limit} ({where})"),
    KillReason.HOST_MEMORY: (
        Outcome.OOM,
        "worker (at most {peak}) and compilers (at most {compilers}) took more than the machine has ({where})",
    ),
}

_OF_FAILURE: dict[FailureClass, Outcome] = {
    FailureClass.OOM: Outcome.OOM,
    FailureClass.GRAPH_BREAK: Outcome.GRAPH_BREAK,
    FailureClass.COMPILE_ERROR: Outcome.COMPILE_ERROR,
    FailureClass.COMPILE_NOT_APPLIED: Outcome.COMPILE_NOT_APPLIED,
    FailureClass.WRONG_RESULT: Outcome.WRONG_RESULT,
    FailureClass.UNSTABLE: Outcome.UNSTABLE,
    FailureClass.CONFLICT: Outcome.CONFLICT,
    FailureClass.USER_CODE: Outcome.CRASH,  # Ask `user_error` first: it ends the search.
    FailureClass.ENVIRONMENT: Outcome.CRASH,  # Ask `machine_fault` first: it ends the search too.
    FailureClass.OTHER: Outcome.CRASH,
}

_MAY_HIDE_MEMORY = frozenset({FailureClass.OTHER, FailureClass.COMPILE_ERROR, FailureClass.USER_CODE})
"""Failures behind which an out-of-memory can hide; then what was said and logged tells."""
_OF_A_RUNTIME = re.compile(r"\b(RuntimeError|AcceleratorError|SystemError)\b")
"""Where the user's function called a library; any other exception in it is the user's own, whatever the log says."""


def classify(
    attempt: Attempt,
    *,
    reference: Parity | None = None,
    tolerance: Mapping[Precision, Tolerance] = TOLERANCE,
    on_slice: bool = False,
) -> Verdict:
    """Return what happened in one attempt. Pure: the same attempt always gives the same verdict.

    Args:
        reference: loss and gradient of the study's reference; None: nothing to compare with (yet).
        tolerance: what differences from it are allowed, by precision.
        on_slice: loss and gradient of this strategy were compared on a slice of the model, and are right.
    """
    # The table: the first row that has a finding decides.
    verdict = (
        _killed(attempt)  # 1. the parent's own reasons
        or _failed(attempt)  # 2. result: an exception, by its type; unclear ones by what was said and logged
        or _wrong(attempt, reference, tolerance)  # 3. result: not the step of the reference
        or _not_compiled(attempt)  # 4. result: a compile that did nothing
        or _measured(attempt)  # 5. result: peak device against the limit
        or _ended(attempt)  # 6. no result: signal and exit status, then the log's last lines
    )
    flags = evidence.flags_of(attempt)
    if _unchecked(attempt, reference):
        flags = (*flags, Flag.CHECKED_ON_SLICE if on_slice else Flag.UNCHECKED)
    return verdict.model_copy(update={"flags": flags, "peak_device_bytes": peak_device_bytes(attempt)})


def classify_twin(attempt: Attempt, tolerance: Mapping[Precision, Tolerance] = TOLERANCE) -> Verdict:
    """Return what a twin test came to: `ok` where both strategies train the same step, else why not. Pure."""
    verdict = (
        _killed(attempt)  # 1. the parent's own reasons
        or _failed(attempt)  # 2. an exception, under either strategy
        or _compared(attempt, tolerance)  # 3. both steps are there
        or _ended(attempt)  # 4. no result
    )
    flags = evidence.flags_of(attempt)
    return verdict.model_copy(update={"flags": flags, "peak_device_bytes": peak_device_bytes(attempt)})


def _compared(attempt: Attempt, tolerance: Mapping[Precision, Tolerance]) -> Verdict | None:
    result, workload = attempt.result, attempt.request.workload
    if result is None:
        return None
    own, other = result.parity, result.twin_parity
    if own is None or other is None or not is_finite(other) or other.gradient_norm == 0:
        return _crash(attempt, "the strategy that it was to be compared with gave nothing to compare")
    if (wrong := _wrong(attempt, None, tolerance)) is not None:
        return wrong
    allowed, routed = tolerance[workload.precision], workload.is_moe
    found = fault(own, other, allowed, layers=result.layers, routed=routed, later=False, other="its twin")
    if found is not None:
        return _wrong_result(Kind.NUMERICS, found)
    return Verdict(outcome=Outcome.OK, detail=agreement(own, other, routed))


def user_error(attempt: Attempt) -> str | None:
    """Return what the user's own model, loss or batch function raised: wrong input, no trial's outcome.

    None where memory seems to be the cause: the same function then fails in one strategy and not in another.
    """
    failure = attempt.result.failure if attempt.result else None
    if failure is None or failure.failure_class is not FailureClass.USER_CODE or _hidden_memory(attempt, failure):
        return None
    return f"{failure.type}: {failure.detail}"


def _hidden_memory(attempt: Attempt, failure: Failure) -> str | None:
    """Return the line in which an allocator complains, where such a failure can stand for it."""
    if failure.failure_class not in _MAY_HIDE_MEMORY:
        return None
    users = failure.failure_class is FailureClass.USER_CODE
    if users and not _OF_A_RUNTIME.search(f"{failure.type}: {failure.detail}"):
        return None
    return evidence.memory_complaint(f"{attempt.tail}\n{evidence.messages(failure)}")


def _killed(attempt: Attempt) -> Verdict | None:
    if attempt.kill_reason is None:
        return None
    outcome, sentence = _OF_REASON[attempt.kill_reason]
    phase, request = evidence.phase_of(attempt), attempt.request
    deadline = request.deadlines.get(phase)
    detail = sentence.format(
        where=evidence.where(attempt),
        foreign=attempt.foreign or "memory without a visible owner",
        deadline="time" if deadline is None else format_duration(deadline),
        peak=format_gib(peak_device_bytes(attempt)),
        limit=format_gib(request.limit_bytes),
        compilers=format_gib(attempt.compilers_peak_bytes),
    )
    return Verdict(outcome=outcome, phase=phase, detail=detail)


def _failed(attempt: Attempt) -> Verdict | None:
    failure = attempt.result.failure if attempt.result else None
    if failure is None:
        return None
    if (complaint := _hidden_memory(attempt, failure)) is not None:
        detail = f"{failure.type} in {evidence.where(attempt)}, and memory seems to be the cause: {complaint}"
        return Verdict(outcome=Outcome.OOM, kind=Kind.SUSPECTED, phase=failure.phase, detail=detail)
    outcome = _OF_FAILURE[failure.failure_class]
    return Verdict(outcome=outcome, kind=failure.kind, phase=failure.phase, detail=failure.detail)


def _wrong(attempt: Attempt, reference: Parity | None, tolerance: Mapping[Precision, Tolerance]) -> Verdict | None:
    parity = attempt.result.parity if attempt.result else None
    if parity is None:
        return None
    if not is_finite(parity):
        return _wrong_result(Kind.NAN, "loss or gradient of the first batch is NaN or infinite")
    if parity.gradient_norm == 0:
        return _wrong_result(Kind.NO_GRADIENT, "no trainable tensor received a gradient")
    if reference is not None and parity.tensors_without_gradient > reference.tensors_without_gradient:
        counts = f"{parity.tensors_without_gradient}, in the reference {reference.tensors_without_gradient}"
        return _wrong_result(Kind.NO_GRADIENT, f"trainable tensors without a gradient: {counts}")
    if not parity.parameter_changed:
        return _wrong_result(Kind.NO_GRADIENT, "the first optimizer step changed no parameter")
    if (reference := _compared_with(parity, reference)) is None:
        return None
    workload, layers = attempt.request.workload, attempt.result.layers if attempt.result else None
    # 8-bit states are another optimizer: from the second step on it trains something else, and may.
    later = complete(attempt.request.strategy)["optimizer"] == _REFERENCES[0]["optimizer"]
    found = fault(parity, reference, tolerance[workload.precision], layers=layers, routed=workload.is_moe, later=later)
    return _wrong_result(Kind.NUMERICS, found) if found else None


def _compared_with(parity: Parity, reference: Parity | None) -> Parity | None:
    """Return the reference that loss and gradient are compared with; None: there is none that says anything."""
    if reference is None or parity.with_dropout or reference.with_dropout:
        return None
    return reference


def _unchecked(attempt: Attempt, reference: Parity | None) -> bool:
    """Was a whole result compared with nothing, though it is not what others are compared with?"""
    result = attempt.result
    if result is None or result.failure is not None:
        return False
    if result.parity is None or result.parity.with_dropout:
        return True
    is_reference = reference is None and complete(attempt.request.strategy) in _REFERENCES
    return not is_reference and _compared_with(result.parity, reference) is None


def _wrong_result(kind: Kind, detail: str) -> Verdict:
    return Verdict(outcome=Outcome.WRONG_RESULT, kind=kind, phase=Phase.FIRST_STEP, detail=detail)


def _not_compiled(attempt: Attempt) -> Verdict | None:
    if attempt.result is None or attempt.request.strategy.get("mode", COMPILE_OFF) == COMPILE_OFF:
        return None
    report = attempt.result.compile
    detail = evidence.compile_fault(report, routed=attempt.request.workload.is_moe)
    if detail is None:
        return None
    kind = Kind.RECOMPILE_LIMIT if report.recompile_limit_hit else None
    return Verdict(outcome=Outcome.COMPILE_NOT_APPLIED, kind=kind, phase=Phase.FIRST_STEP, detail=detail)


def _measured(attempt: Attempt) -> Verdict | None:
    if attempt.result is None:
        return None
    peak, limit = peak_device_bytes(attempt), attempt.request.limit_bytes
    if attempt.result.throughput is None or peak is None:
        missing = "throughput" if attempt.result.throughput is None else "peak device"
        return _crash(attempt, f"the worker's result has no failure, and no {missing} either")
    if peak > limit:
        phase, replay = evidence.peak_phase(attempt), attempt.result.peak_replay
        where = f" {replay.words}" if phase is Phase.LONGEST_BATCH and replay else ""
        detail = f"peak device {format_gib(peak)}{where} is above the limit of {format_gib(limit)}"
        return Verdict(outcome=Outcome.OVER_BUDGET, phase=phase, detail=detail)
    return Verdict(outcome=Outcome.OK, detail="; ".join(attempt.result.no_effect.values()))


def _ended(attempt: Attempt) -> Verdict:
    end = evidence.how_it_ended(attempt)
    if evidence.signal_of(attempt) == signal.SIGKILL:
        # Not ours: `kill_reason` would say so.
        return _crash(attempt, f"{end}, and not by us: most likely the kernel, as the host was out of memory")
    complaint = evidence.memory_complaint(attempt.tail)
    if complaint:
        detail = f"{end}, and memory seems to be the cause: {complaint}"
        return Verdict(outcome=Outcome.OOM, kind=Kind.SUSPECTED, phase=evidence.phase_of(attempt), detail=detail)
    return _crash(attempt, f"{end}; last line of the log: {evidence.last_line(attempt.tail)}")


def _crash(attempt: Attempt, detail: str) -> Verdict:
    return Verdict(outcome=Outcome.CRASH, phase=evidence.phase_of(attempt), detail=detail)
