"""One strategy of an exported plan, measured again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from strategies.knob import Conflict, Severity, Target
from tuner.bench import Bench, make_study, open_bench, require_compiler
from tuner.errors import Interrupted, MachineError, WrongInput
from tuner.executor import Executor
from tuner.kinds import Phase
from tuner.ledger import Ledger
from tuner.listener import Listener
from tuner.machine_fault import machine_fault
from tuner.measuring import kill_left_over, make_executor, make_requests
from tuner.model_source import find_function, find_model
from tuner.outcome import Outcome, classify, user_error
from tuner.pick_device import pick_device
from tuner.plan import ExportedPlan
from tuner.protocol import Attempt, TrialRequest
from tuner.record import StudyRecord, TrialRecord
from tuner.space import conflict_of, describe, fingerprint
from tuner.spec import make_target, read_spec
from tuner.tested import require_tested
from tuner.trial_dir import TrialDir
from tuner.twins import Twins
from tuner.units import GIB, format_duration
from tuner.workload import ModelKind

TIMES_SLOWER = 4.0
"""As slow as this against the file a compile or a step may be: another machine, a cold cache."""
STEPS_AT_MOST = 50
"""Optimizer steps that a phase is expected to have."""
LEAST_SECONDS = 180.0
UNKNOWN_COMPILE_SECONDS = 600.0
"""Where the file's was not a cold one."""
STUDY = "runs"
"""The folder of runs that belong to no study here."""


def run_plan(
    plan: ExportedPlan,
    flags: Mapping[str, Any],
    environment: Mapping[str, str],
    listener: Listener,
    stopped: Callable[[], bool],
    memory_snapshot: bool = False,
) -> TrialRecord:
    """Measure the plan's strategy once, in a fresh process under the cap, and keep the record.

    Args:
        memory_snapshot: keep the allocator's snapshot of one step; of an out-of-memory it is kept always.

    Raises:
        WrongInput: the strategy cannot work here, or there is no snapshot on a CPU.
        MachineError: the machine cannot do it.
        Interrupted: a signal came.
    """
    spec = read_spec(None, _asked(plan, flags))
    on = pick_device(spec.device, environment.get("CUDA_VISIBLE_DEVICES")).type
    if memory_snapshot and on == "cpu":
        raise WrongInput("memory-snapshot", "is of a card's allocator: on a CPU there is none to take")
    # Before anything is written; whether a card is emulated is known only further down.
    _refuse_impossible(plan, make_target(plan.workload, on, False, None))
    check_sources(plan)
    with open_bench(spec, environment, listener, plan.workload, stopped) as bench:
        conflict = _refuse_impossible(plan, bench.target)
        if conflict is not None:
            listener.message(f"a search would skip this one: {conflict.reason}")
        require_compiler(bench.check, (plan.strategy["mode"],))
        kill_left_over(listener)
        study, is_new = _study(bench, plan)
        requests = make_requests(bench, study.name, spec)
        requests.deadlines = run_deadlines(plan) | spec.deadline
        ledger = Ledger(study, bench.records.for_key(bench.key), lambda _: None)
        requests.learn(ledger.records)
        twins = Twins(study, bench.target, requests, bench.records.for_key)
        if (outside := outside_bytes(plan, bench)) is not None:
            requests.take_outside(plan.strategy, outside)
        latest = format_duration(sum(requests.deadlines.values()))
        notes = (*bench.notes, f"it is measured once, and ended after {latest} at the latest (--deadline)")
        # A study keeps the limit of its last search; what is measured now has its own.
        listener.started(study.model_copy(update={"limit_bytes": bench.limits.limit_bytes}), notes, 1, None)

        def keep(record: TrialRecord) -> None:
            nonlocal is_new
            if is_new:
                bench.records.add_study(study)
                is_new = False
            bench.records.add(record)

        with make_executor(bench, spec, environment) as executor:
            measure = partial(_measure, executor, listener, stopped)
            require_tested(plan.strategy, twins, requests, measure, keep, listener)
            folder = requests.folder("run")
            request = requests.make(dict(plan.strategy), folder, role="run")
            request = request.model_copy(update={"memory_snapshot": memory_snapshot})
            listener.trial_started("run", plan.strategy, "run")
            attempt = measure(request, folder)
        if (fault := machine_fault(attempt)) is not None:
            raise MachineError(fault)
        if (problem := user_error(attempt)) is not None:
            raise WrongInput("the user's code", problem)
        reference = ledger.reference(request.seed, fingerprint(plan.strategy))
        verdict = classify(
            attempt,
            reference=reference,
            tolerance=ledger.tolerance(request.seed, plan.strategy),
            on_slice=twins.checked_on_slice(plan.strategy),
        )
        record = requests.record(attempt, verdict, role="run", source="run", number=None)
        record = twins.with_doubt(ledger.remarked(record))
        keep(record)
        if record.result is not None and record.result.snapshot is not None:
            listener.message(f"the allocator's snapshot: {folder.path / record.result.snapshot}")
        listener.trial_finished(record, record if record.outcome is Outcome.OK else None, 0.0)
    if record.outcome is Outcome.INTERRUPTED:
        raise Interrupted("interrupted: the strategy was not measured to its end")
    if record.outcome is Outcome.DEVICE_NOT_CLEAN:
        raise MachineError(record.detail)
    return record


def _asked(plan: ExportedPlan, flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags, with what the plan was made for where they say nothing."""
    given: dict[str, Any] = {"device": plan.environment.device_type, "seed": plan.seed}
    if flags.get("budget_gb") is None and flags.get("card") is None:
        given |= {"card": plan.card} if plan.card else {"budget_gb": plan.budget_bytes / GIB}
    return given | dict(flags)


def run_deadlines(plan: ExportedPlan) -> dict[Phase, float]:
    """Return the seconds that each phase may take: what the file says it took, several times over.

    A search's own deadlines follow from its time budget, and a run has none.
    """
    measured = plan.measured
    # A compile that came from the cache took no time then, and may take its whole time now.
    least = LEAST_SECONDS if plan.proved else UNKNOWN_COMPILE_SECONDS
    first_step = max(least, TIMES_SLOWER * (measured.compile_seconds or 0.0))
    steps = max(LEAST_SECONDS, STEPS_AT_MOST * TIMES_SLOWER * (measured.step_seconds or 0.0))
    return {
        Phase.START: LEAST_SECONDS,
        Phase.LOAD: 300.0,
        Phase.WARMUP_BATCH: first_step,
        Phase.FIRST_STEP: first_step,
        Phase.SETTLE: steps + first_step,
        Phase.STEADY: steps,
        Phase.LONGEST_BATCH: steps + first_step,
    }


def outside_bytes(plan: ExportedPlan, bench: Bench) -> int | None:
    """Return what the file's cap left outside the allocator; None: it was of another card or budget.

    It was proved under that cap; the one that is assumed before any trial may be lower, and it would die.
    """
    then, now = plan.environment, bench.environment
    same_card = (then.device_name, then.device_total_bytes) == (now.device_name, now.device_total_bytes)
    same_limit = (plan.budget_bytes, plan.card) == (bench.asked_bytes, bench.card)
    if plan.cap_bytes is None or not same_card or not same_limit:
        return None
    return plan.limit_bytes - plan.cap_bytes


def _refuse_impossible(plan: ExportedPlan, target: Target) -> Conflict | None:
    """Return the conflict of a strategy that can be run all the same; None: there is none."""
    conflict = conflict_of(plan.strategy, target)
    if conflict is not None and conflict.severity is Severity.IMPOSSIBLE:
        raise WrongInput("strategy", f"cannot work here: {conflict.reason}", describe(plan.strategy))
    return conflict


def check_sources(plan: ExportedPlan) -> None:
    """Refuse a plan whose model, loss or batches come from a file that is another one now.

    Raises:
        WrongInput: what would be measured is not what the plan was measured for.
    """
    workload = plan.workload
    found: dict[str, str] = {}
    if workload.model_kind in (ModelKind.FUNCTION, ModelKind.FOLDER):
        found |= find_model(workload.model).sources
    for field in ("loss", "batch_fn"):
        if (given := getattr(workload, field)) is not None:
            found |= find_function(field, given)[1]
    changed = [name for name, digest in workload.sources.items() if found.get(name) != digest]
    if changed:
        raise WrongInput("plan", f"was measured with another text of {', '.join(changed)}: search again")


def _study(bench: Bench, plan: ExportedPlan) -> tuple[StudyRecord, bool]:
    """Return the study of this key that the plan came from, where it is here; else one of its own for runs.

    The second says whether it is new. One that is there is left as it is: it was not searched.
    """
    found = bench.records.study(plan.study)
    if found is not None and found.key == bench.key:
        return found, False
    name = f"{STUDY}-{bench.key[:8]}"
    found = bench.records.study(name)
    if found is not None:
        return found, False
    return make_study(bench, name), True


def _measure(
    executor: Executor, listener: Listener, stopped: Callable[[], bool], request: TrialRequest, folder: TrialDir
) -> Attempt:
    """Launch a request and wait for its end."""
    handle = executor.submit(request, folder)
    seen = None
    while True:
        if ended := executor.poll():
            return ended[0]
        if (phase := executor.phases().get(handle)) is not None and phase is not seen:
            seen = phase
            listener.phase(phase)
        if stopped():
            executor.cancel(handle)
        time.sleep(0.05)
