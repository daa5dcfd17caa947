"""Write the winner, or a named trial, as a YAML file that a training script can use."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import yaml

from strategies.checkpointing import CHECKPOINT_OFF
from strategies.registry import KNOBS
from tuner import __version__
from tuner.break_even import BreakEven, CompileCosts, Ranking, break_even, reference
from tuner.errors import WrongInput
from tuner.kinds import Flag, Phase
from tuner.peak_phase import peak_of
from tuner.plan import ExportedPlan, Measured, load_plan
from tuner.record import StudyRecord, TrialRecord, best, standing
from tuner.seen import as_seen, seen
from tuner.speed_words import pays_words
from tuner.wording import cause, figures, flag_words
from tuner.workload import Workload

__all__ = ["ExportedPlan", "choose", "exported", "load_plan", "to_yaml", "write"]


def choose(
    study: StudyRecord, records: Sequence[TrialRecord], trial: int | None, *, train_steps: int | None = None
) -> TrialRecord | None:
    """Return the best record, or that of `trial` with a later proof of the same strategy above it.

    Args:
        records: of the study's key.
        trial: a number of this study; None: the best. None is returned where nothing is best.
        train_steps: steps of the run that the best is best over, compiling included; None: by throughput.

    Raises:
        WrongInput: there is no such trial, or it was not measured to its end.
    """
    records = seen(study, records)
    if trial is None:
        return best(records, study.limit_bytes, rate=Ranking(train_steps, records).rate)
    found = next((r for r in records if r.study == study.name and r.number == trial), None)
    if found is None:
        numbers = sorted(r.number for r in records if r.study == study.name and r.number is not None)
        known = f"the study has trials {numbers[0]} to {numbers[-1]}" if numbers else "the study has no trial yet"
        raise WrongInput("trial", "must be a trial of the study", trial, known)
    alike = [r for r in records if r.fingerprint == found.fingerprint]
    chosen = best(alike, study.limit_bytes) or found
    if chosen.tokens_per_s is None:
        raise WrongInput("trial", f"has no figures to export, it ended as: {cause(chosen)}", trial)
    return chosen


def exported(study: StudyRecord, record: TrialRecord, records: Sequence[TrialRecord] = ()) -> ExportedPlan:
    """Return the plan of a record that was measured to its end, for the budget of `study`.

    The record may have been measured for another budget: the plan has the study's, and its cap
    leaves as much outside the allocator as the record's did.

    Args:
        records: of the study's key: what compiling costs, and a reference, are found among them.
    """
    record = as_seen(study, record)
    own = record.study == study.name
    return ExportedPlan(
        made_by=f"compile-tuner {__version__}",
        strategy=record.strategy,
        use_reentrant=None if record.strategy["checkpointing"] == CHECKPOINT_OFF else False,
        workload=study.workload,
        measured=measured(record, study.workload, _break_even(study, record, records)),
        proved=record.role == "proof",
        flags=record.flags,
        budget_bytes=study.budget_bytes,
        card=study.card,
        limit_bytes=study.limit_bytes,
        cap_bytes=None if record.cap_bytes is None else study.limit_bytes - (record.limit_bytes - record.cap_bytes),
        environment=study.environment,
        process_environment=record.process_environment,
        seed=record.seed,
        study=study.name,
        trial=record.number if own else None,
        uuid=record.uuid,
        fingerprint=record.fingerprint,
    )


def _break_even(study: StudyRecord, record: TrialRecord, records: Sequence[TrialRecord]) -> BreakEven | None:
    all_seen = seen(study, records)
    return break_even(record, CompileCosts(all_seen), reference(standing(all_seen, study.limit_bytes)))


def measured(record: TrialRecord, workload: Workload | None = None, pays: BreakEven | None = None) -> Measured:
    """Return the figures of a record that was measured to its end, and when its compiling is paid for."""
    assert record.tokens_per_s is not None
    result = record.result
    through = result.throughput if result else None
    phases: dict[Phase, int] = {p.phase: p.device_bytes for p in result.phases if p.device_bytes} if result else {}
    return Measured(
        tokens_per_s=record.tokens_per_s,
        step_seconds=through.step_seconds if through else None,
        step_seconds_p10=through.step_seconds_p10 if through else None,
        step_seconds_p90=through.step_seconds_p90 if through else None,
        median_within=through.median_within if through else None,
        peak_device_bytes=record.peak_device_bytes,
        peak_reserved_bytes=record.peak_reserved_bytes,
        peak_allocated_bytes=record.peak_allocated_bytes,
        peak_device_bytes_by_phase=phases,
        peak_phase=peak_of(record, workload),
        compile_seconds=record.compile_seconds,
        break_even_steps=pays.steps if pays else None,
        break_even_against=pays.against if pays else None,
        micro_batch=result.micro_batch if result else None,
        accumulation=result.accumulation if result else None,
    )


def to_yaml(plan: ExportedPlan, record: TrialRecord) -> str:
    """Return the file's text: comments that explain it, then the plan."""
    body = yaml.safe_dump(plan.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)
    return "\n".join(f"# {line}".rstrip() for line in comments(plan, record)) + "\n" + body


def comments(plan: ExportedPlan, record: TrialRecord) -> list[str]:
    """What a person wants to know before the keys: the claim, each knob, each flag, how to use it."""
    proof = "proved in a fresh process under the cap" if plan.proved else "not proved"
    lines = [f"{plan.workload.describe()}: {figures(record, plan.limit_bytes)}; {proof}."]
    if plan.measured.peak_phase is not None:
        lines.append(f"Memory: {plan.measured.peak_phase.words()}.")
    if plan.card is not None and Flag.EMULATED in plan.flags:
        lines.append(f"Searched for the card {plan.card}; throughput was measured on {plan.environment.device_name}.")
    lines += ["", "What it does:"]
    changed = [(k, plan.strategy[k.name]) for k in KNOBS if plan.strategy.get(k.name, k.baseline) != k.baseline]
    lines += [f"  {knob.name}: {knob.explain(value)}" for knob, value in changed]
    if not changed:
        lines += ["  Nothing: the baseline is the fastest that fits."]
    if plan.measured.compile_seconds is not None:
        m = plan.measured
        against = m.break_even_against
        when = None if against is None else BreakEven(steps=m.break_even_steps, against=against)
        lines += ["", f"Compiling: {pays_words(when)}."]
    if plan.flags:
        lines += ["", "Flags:", *(f"  {flag_words(flag, plan.environment.device_name)}" for flag in plan.flags)]
    if plan.process_environment:
        lines += ["", "Measured with these in the environment, set before Python starts:"]
        lines += [f"  export {name}={value}" for name, value in plan.process_environment.items()]
    return [*lines, "", "Measure it again: tuner run FILE. Use it: tuner.apply(model, FILE)."]


def write(text: str, path: Path) -> None:
    """Write the whole file or nothing.

    Raises:
        WrongInput: the folder is missing or cannot be written.
    """
    temporary: str | None = None
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "w") as stream:
            stream.write(text)
        # mkstemp makes files that only their owner may read.
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise WrongInput("output", f"{path} cannot be written ({error.strerror})") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
