"""Everything that a search needs, opened in order and closed again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from optuna.trial import TrialState

from strategies.knob import COMPILE_OFF, Value
from tuner import resume
from tuner.bench import Bench, make_study, open_bench, require_compiler, require_some
from tuner.chooser import Chooser
from tuner.encoding import decode, distributions
from tuner.ledger import Ledger
from tuner.listener import Listener
from tuner.measuring import kill_left_over, make_executor, make_requests
from tuner.record import StudyRecord, TrialRecord
from tuner.records import Records
from tuner.recovery import left_over, left_over_tests, recover
from tuner.requests import Requests
from tuner.search import Search
from tuner.space import Space, canonical, fingerprint
from tuner.spec import StudySpec, make_filter
from tuner.study import StudyHandle, default_name, open_study
from tuner.truth_words import same_step
from tuner.twins import Twins


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSession:
    """An open search and its study."""

    search: Search
    study: StudyRecord
    records: Records
    notes: tuple[str, ...]
    eager_only: bool
    """The user fixed ``mode=off``."""


@contextmanager
def open_search(
    spec: StudySpec, environment: Mapping[str, str], listener: Listener, stopped: Callable[[], bool]
) -> Iterator[SearchSession]:
    """Open the study of `spec`, new or to be resumed, with its lease and its device held.

    Raises:
        MachineError: the machine cannot do it, or another search holds study or card.
        WrongInput: the spec cannot be used here.
    """
    ends_at = time.time() + spec.time_budget_seconds
    with ExitStack() as stack:
        bench = stack.enter_context(open_bench(spec, environment, listener, stopped=stopped))
        allowed, filter_notes = make_filter(spec, bench.target)
        require_compiler(bench.check, allowed["mode"])
        study = _study(bench, spec)
        kill_left_over(listener)
        lease = bench.records.acquire_lease(study.name)
        stack.callback(bench.records.release, lease)
        space = Space(bench.target, allowed)
        require_some(space)
        handle = open_study(
            bench.storage, bench.records, name=study.name, target=bench.target, study_record=study,
            sampler=spec.sampler, seed=spec.seed, space=space,
        )  # fmt: skip
        requests = make_requests(bench, study.name, spec)
        eager_only = set(allowed["mode"]) == {COMPILE_OFF}
        ledger = Ledger(
            study, bench.records.for_key(bench.key), handle.known.add,
            eager_only=eager_only, space=space, deadlines=requests.deadlines, train_steps=spec.train_steps,
        )  # fmt: skip
        requests.learn(ledger.records)
        twins = Twins(study, bench.target, requests, bench.records.for_key)
        again = _take_over(handle, bench.records, ledger, requests, twins)
        executor = stack.enter_context(make_executor(bench, spec, environment))
        chooser = Chooser(
            handle=handle, ledger=ledger, requests=requests, twins=twins, listener=listener, ends_at=ends_at,
            trials=spec.trials, sampler=spec.sampler, again=again,
        )  # fmt: skip
        search = Search(
            handle=handle, records=bench.records, ledger=ledger, executor=executor, requests=requests,
            chooser=chooser, twins=twins, listener=listener, stopped=stopped, beat=lambda: bench.records.beat(lease),
        )  # fmt: skip
        notes = (*bench.notes, *filter_notes, same_step(bench.workload))
        yield SearchSession(search=search, study=study, records=bench.records, notes=notes, eager_only=eager_only)


def _study(bench: Bench, spec: StudySpec) -> StudyRecord:
    record = make_study(bench, spec.study or "")
    return record if spec.study else record.model_copy(update={"name": default_name(record, bench.target)})


def _take_over(
    handle: StudyHandle, records: Records, ledger: Ledger, requests: Requests, twins: Twins
) -> list[dict[str, Value]]:
    """Take over what there is from before; return the strategies that were interrupted."""
    made = records.study(ledger.study.name)
    since = ledger.study.created_at if made is None else made.created_at
    for record in left_over_tests(requests, twins, since):
        records.add(record)
        twins.take(record)
    whole = len(distributions(handle.target))  # a trial that died while it was asked has fewer
    running = [trial for trial in handle.trials(TrialState.RUNNING) if len(trial.params) == whole]
    asked = {trial.number: fingerprint(decode(trial.params, handle.target)) for trial in running}

    def keep(number: int) -> TrialRecord | None:
        record = recover(number, requests, ledger, twins.checked_on_slice)
        # The folder may be of an earlier database.
        if record is None or record.fingerprint != asked.get(number):
            return None
        ledger.add(record)
        requests.learn([record])
        return record

    again = resume.sweep(handle, records, keep)
    for record in left_over(requests, ledger, since, twins.checked_on_slice):
        records.add(record)
        ledger.add(record)
        requests.learn([record])
    by_cap: dict[int | None, list[TrialRecord]] = {}
    for record in ledger.records:  # the cap depends on the kind of mode
        by_cap.setdefault(requests.cap_bytes(canonical(record.strategy)), []).append(record)
    for cap_bytes, group in by_cap.items():
        resume.seed_from_records(handle, group, cap_bytes=cap_bytes, deadlines=requests.deadlines)
    return again
