"""One strategy of an exported plan, measured again and laid beside what the plan says."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from strategies.knob import Conflict, Severity, Target
from tuner.bench import Bench, make_study, open_bench, require_compiler
from tuner.errors import ExitCode, Interrupted, MachineError, WrongInput
from tuner.ledger import Ledger
from tuner.listener import Listener
from tuner.machine_fault import machine_fault
from tuner.measuring import kill_left_over, make_executor, make_requests
from tuner.model_source import find_function, find_model
from tuner.outcome import Outcome, classify, user_error
from tuner.pick_device import pick_device
from tuner.plan import ExportedPlan
from tuner.protocol import Attempt
from tuner.record import StudyRecord, TrialRecord
from tuner.space import conflict_of, describe, fingerprint
from tuner.spec import make_target, read_spec
from tuner.units import GIB, format_gib
from tuner.wording import result_words
from tuner.workload import ModelKind

HOLDS_FROM = 0.95
"""Of the recorded throughput, less the recorded spread."""
STUDY = "runs"
"""The folder of runs that belong to no study here."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Does a strategy hold?"""

    exit_code: ExitCode
    sentence: str


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
        ledger = Ledger(study, bench.records.for_key(bench.key), lambda _: None)
        requests.learn(ledger.records)
        if (outside := outside_bytes(plan, bench)) is not None:
            requests.take_outside(plan.strategy, outside)
        folder = requests.folder("run")
        request = requests.make(dict(plan.strategy), folder, role="run")
        request = request.model_copy(update={"memory_snapshot": memory_snapshot})
        listener.started(study, bench.notes, 1, None)
        listener.trial_started("run", plan.strategy, "run")
        with make_executor(bench, spec, environment) as executor:
            handle = executor.submit(request, folder)
            attempt = _wait(executor, handle, listener, stopped)
        if (fault := machine_fault(attempt)) is not None:
            raise MachineError(fault)
        if (problem := user_error(attempt)) is not None:
            raise WrongInput("the user's code", problem)
        reference = ledger.reference(request.seed, fingerprint(plan.strategy))
        record = requests.record(attempt, classify(attempt, reference=reference), role="run", source="run", number=None)
        if is_new:
            bench.records.add_study(study)
        bench.records.add(record)
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


def _wait(executor: Any, handle: str, listener: Listener, stopped: Callable[[], bool]) -> Attempt:
    seen = None
    while True:
        ended: list[Attempt] = executor.poll()
        if ended:
            return ended[0]
        if (phase := executor.phases().get(handle)) is not None and phase is not seen:
            seen = phase
            listener.phase(phase)
        if stopped():
            executor.cancel(handle)
        time.sleep(0.05)


def compare(plan: ExportedPlan, record: TrialRecord) -> Comparison:
    """Return whether the strategy holds: `ok`, peak within the limit, 95 % of the throughput less the spread."""
    if record.outcome is not Outcome.OK or record.tokens_per_s is None:
        return Comparison(ExitCode.DOES_NOT_HOLD, "It does not hold: " + result_words(record, record.limit_bytes) + ".")
    needed = HOLDS_FROM * plan.measured.tokens_per_s * (1 - _spread(plan))
    if record.tokens_per_s < needed:
        slow = f"{record.tokens_per_s:,.0f} tokens/s, and {needed:,.0f} are 95 % of the file's less its spread"
        return Comparison(ExitCode.DOES_NOT_HOLD, f"It does not hold: {slow}.")
    return Comparison(
        ExitCode.DONE, f"It holds: within the limit of {format_gib(record.limit_bytes)}, and as fast as the file says."
    )


def _spread(plan: ExportedPlan) -> float:
    """Return half of the recorded steps' p10 to p90, against the median."""
    m = plan.measured
    if not m.step_seconds or m.step_seconds_p10 is None or m.step_seconds_p90 is None:
        return 0.0
    return (m.step_seconds_p90 - m.step_seconds_p10) / 2 / m.step_seconds


def compare_view(plan: ExportedPlan, record: TrialRecord, result: Comparison) -> Table:
    """Return both columns of figures, with the sentence above."""
    table = Table(title=Text(result.sentence, style="bold"), title_justify="left", box=None, pad_edge=False)
    for name, justify in (("", "left"), ("the file", "right"), ("now", "right"), ("now / file", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    m = plan.measured
    _row(table, "tokens/s", m.tokens_per_s, record.tokens_per_s, lambda v: f"{v:,.0f}")
    throughput = record.result.throughput if record.result else None
    _row(table, "step, median s", m.step_seconds, throughput.step_seconds if throughput else None, lambda v: f"{v:.4f}")
    _row(table, "peak device", m.peak_device_bytes, record.peak_device_bytes, lambda v: format_gib(int(v)))
    _row(table, "peak reserved", m.peak_reserved_bytes, record.peak_reserved_bytes, lambda v: format_gib(int(v)))
    now = {p.phase: p.device_bytes for p in record.result.phases} if record.result else {}
    for phase, size in m.peak_device_bytes_by_phase.items():
        _row(table, f"  in {phase}", size, now.get(phase), lambda v: format_gib(int(v)))
    if plan.flags or record.flags:
        table.add_row("flags", ", ".join(plan.flags), ", ".join(record.flags), "")
    _row(table, "compile s", m.compile_seconds, record.compile_seconds, lambda v: f"{v:.1f}")
    return table


def blocks_view(record: TrialRecord) -> list[str]:
    """Return what the largest live blocks of the snapshot were allocated for, a line each; none without one."""
    blocks = record.result.largest_blocks if record.result else ()
    return ["What held memory, the largest first:", *(f"  {block}" for block in blocks)] if blocks else []


def _row(table: Table, name: str, old: float | None, new: float | None, show: Callable[[float], str]) -> None:
    ratio = f"{new / old:.3f}" if old and new else ""
    table.add_row(name, *("" if v is None else show(v) for v in (old, new)), ratio)
