"""An Optuna study of ours, on SQLite and on PostgreSQL: asked, told and resumed."""

from __future__ import annotations

import math
import statistics
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState
from sqlalchemy.exc import OperationalError

from tests.tuner.made import CUDA, record_of, result_of, study_of, throughput_of
from tests.tuner.postgres import postgres_server, postgres_url
from tests.tuner.test_sampler import speed
from tests.tuner.test_storage import locked
from tuner.errors import MachineError, WrongInput
from tuner.kinds import Phase
from tuner.outcome import Outcome
from tuner.record import TrialRecord
from tuner.records import Records
from tuner.resume import seed_from_records, sweep
from tuner.space import Space, canonical, default_allowed, fingerprint
from tuner.storage import Storage, open_storage
from tuner.study import SpaceExhausted, StudyHandle, ask, default_name, distributions, open_study, tell
from tuner.units import GIB

__all__ = ["postgres_server", "postgres_url"]

CUDA_8 = replace(CUDA, batch_size=8)
BASELINE = canonical({})
LAYER = canonical({"mode": "default", "scope": "layer"})
SPACE = Space(CUDA, default_allowed(CUDA, include_slow=False))
NOW: dict[str, Any] = {"cap_bytes": 22 * GIB, "deadlines": {Phase.FIRST_STEP: 180.0}}


@pytest.fixture(params=["sqlite", "postgresql"])
def any_storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    url = None if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    opened = open_storage(url, tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    opened = open_storage(None, tmp_path)
    yield opened
    opened.close()


def opened(storage: Storage, name: str = "s", **changes: Any) -> StudyHandle:
    values: dict[str, Any] = {
        "target": CUDA,
        "study_record": study_of(name),
        "sampler": "tpe",
        "seed": 0,
        "space": SPACE,
    } | changes
    return open_study(storage, Records(storage.engine, storage.retry), name=name, **values)


def launched(handle: StudyHandle, strategy: dict[str, Any], record: TrialRecord, records: Records) -> TrialRecord:
    """Ask, write the record and tell, as a search does."""
    trial, asked = ask(handle, strategy)
    full = record.model_copy(
        update={"number": trial.number, "strategy": asked, "fingerprint": fingerprint(asked), "study": "s"}
    )
    records.add(full)
    tell(handle, trial, full)
    return full


@pytest.fixture
def handle(storage: Storage) -> StudyHandle:
    return opened(storage)


@pytest.fixture
def records(storage: Storage) -> Records:
    return Records(storage.engine, storage.retry)


def test_the_main_path(any_storage: Storage) -> None:
    records, handle = Records(any_storage.engine, any_storage.retry), opened(any_storage)
    launched(handle, BASELINE, record_of(Outcome.OOM, phase=Phase.FIRST_STEP, detail="needs more"), records)
    launched(handle, LAYER, record_of(tokens_per_s=1500.0), records)
    launched(handle, {**LAYER, "scope": "whole"}, record_of(Outcome.OVER_BUDGET, tokens_per_s=9000.0), records)
    for _ in range(5):
        trial, strategy = ask(handle)
        assert strategy in SPACE
        tell(handle, trial, record_of(strategy=strategy, number=trial.number, tokens_per_s=900.0))
    found = handle.trials()
    assert [t.state.name for t in found[:3]] == ["PRUNED", "COMPLETE", "COMPLETE"]
    assert [t.constraints for t in found[:2]] == [{}, {"memory": 20 / 23 - 1}]
    assert found[2].constraints["memory"] > 0 and handle.study.best_trial.number == 1
    assert len({fingerprint(SPACE.at(t.user_attrs["fingerprint"])) for t in found}) == 8
    assert handle.in_flight == set()


def test_study_attributes(handle: StudyHandle) -> None:
    attrs = handle.study.user_attrs
    assert attrs["key"] == "key" and attrs["budget_gib"] == 24 and attrs["limit_bytes"] == 23 * GIB
    assert attrs["workload"].startswith("tiny") and attrs["device"] == "a card" and len(attrs["knobs"]) == 8
    assert handle.study.metric_names == ["tokens_per_s"]
    assert handle.study.direction is optuna.study.StudyDirection.MAXIMIZE


@pytest.mark.parametrize(
    ("outcome", "role", "state"),
    [
        (Outcome.OK, "search", TrialState.COMPLETE),
        (Outcome.OVER_BUDGET, "search", TrialState.COMPLETE),
        (Outcome.CRASH, "search", TrialState.FAIL),
        (Outcome.CRASH, "retry", TrialState.PRUNED),
        (Outcome.DEVICE_NOT_CLEAN, "search", TrialState.FAIL),
        (Outcome.INTERRUPTED, "search", TrialState.FAIL),
        *((Outcome(o), "search", TrialState.PRUNED) for o in ("conflict", "oom", "graph_break", "compile_error")),
        *((Outcome(o), "search", TrialState.PRUNED) for o in ("compile_not_applied", "wrong_result", "unstable")),
        (Outcome.TIMEOUT, "search", TrialState.PRUNED),
    ],
)
def test_what_optuna_is_told(handle: StudyHandle, outcome: Outcome, role: str, state: TrialState) -> None:
    trial, strategy = ask(handle, LAYER)
    tell(handle, trial, record_of(outcome, strategy, role=role))
    found = handle.trials()[0]
    complete = state is TrialState.COMPLETE
    assert found.state is state and found.value == (1000.0 if complete else None)
    assert list(found.constraints) == (["memory"] if complete else [])
    known = fingerprint(LAYER) in handle.known
    assert known is (outcome not in (Outcome.DEVICE_NOT_CLEAN, Outcome.INTERRUPTED))


def test_trial_attributes(handle: StudyHandle) -> None:
    trial, strategy = ask(handle, LAYER)
    record = record_of(
        strategy=strategy,
        detail="fine",
        source="recipe: layer",
        peak_reserved_bytes=19 * GIB,
        compile_seconds=12.5,
        result=result_of(throughput=throughput_of()),
    )
    tell(handle, trial, record)
    assert handle.trials()[0].user_attrs == {
        "outcome": "ok",
        "detail": "fine",
        "source": "recipe: layer",
        "strategy": "mode=default, scope=layer",
        "fingerprint": record.fingerprint,
        "uuid": record.uuid,
        "peak_device_gib": 20.0,
        "peak_reserved_gib": 19.0,
        "tokens_per_s": 1000.0,
        "step_ms": 500.0,
        "compile_s": 12.5,
    }


@pytest.mark.parametrize("bad", [math.nan, math.inf, None])
def test_no_throughput_is_invented(handle: StudyHandle, bad: float | None) -> None:
    trial, strategy = ask(handle, LAYER)
    tell(handle, trial, record_of(strategy=strategy, tokens_per_s=bad))
    found = handle.trials()[0]
    assert found.state is TrialState.PRUNED and found.value is None and "tokens_per_s" not in found.user_attrs


def test_telling_again_changes_nothing(handle: StudyHandle) -> None:
    trial, strategy = ask(handle, LAYER)
    record = record_of(strategy=strategy)
    trial.set_constraint("memory", 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tell(handle, trial, record)
        tell(handle, trial, record.model_copy(update={"outcome": Outcome.OOM}))
    assert handle.trials()[0].state is TrialState.COMPLETE


def test_a_value_that_is_not_there_begins_no_trial(handle: StudyHandle) -> None:
    with pytest.raises(WrongInput, match="micro_batch: must be one of 1, 2, 4"):
        ask(handle, {**BASELINE, "micro_batch": 3})
    assert handle.trials() == []


def test_an_exhausted_space_begins_no_trial(storage: Storage) -> None:
    space = Space(CUDA, {knob: (BASELINE[knob],) for knob in BASELINE})
    handle = opened(storage, space=space)
    assert ask(handle)[1] == BASELINE
    with pytest.raises(SpaceExhausted):
        ask(handle)
    assert len(handle.trials()) == 1


def test_an_ask_that_fails_leaves_nothing_running(handle: StudyHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = ask(handle, BASELINE)

    def broken(*_: object) -> dict[str, Any]:
        raise ZeroDivisionError("in the sampler")

    monkeypatch.setattr(handle.sampler, "sample_relative", broken)
    with pytest.raises(ZeroDivisionError):
        ask(handle)
    states = [t.state for t in handle.trials()]
    assert states == [TrialState.RUNNING, TrialState.FAIL], "the trial in flight is not touched"
    assert handle.in_flight == {first.number}
    monkeypatch.undo()
    assert ask(handle)[1] != BASELINE


def test_an_ask_that_is_locked_out_half_way_is_made_again(handle: StudyHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    # What Optuna's cache in front of the database calls.
    real, calls = handle.storage.optuna._set_trial_param, []

    def locked_once(*args: Any) -> None:
        calls.append(1)
        if len(calls) == 4:
            cause = OperationalError("INSERT", {}, Exception("database is locked"))
            raise optuna.exceptions.StorageInternalError("locked") from cause
        real(*args)

    monkeypatch.setattr(handle.storage.optuna, "_set_trial_param", locked_once)
    trial, strategy = ask(handle, LAYER)
    assert strategy == LAYER and trial.number == 1
    assert [t.state for t in handle.trials()] == [TrialState.FAIL, TrialState.RUNNING]


@pytest.mark.parametrize("step", ["ask", "tell"])
def test_a_locked_database_loses_nothing(tmp_path: Path, step: str) -> None:
    storage = open_storage(None, tmp_path, busy_seconds=0.1, retry_seconds=30)
    handle = opened(storage)
    trial, strategy = ask(handle, LAYER)
    assert storage.path
    with locked(storage.path, 2.0):
        if step == "ask":
            trial, strategy = ask(handle, BASELINE)
        else:
            tell(handle, trial, record_of(strategy=strategy))
    if step == "ask":
        tell(handle, trial, record_of(strategy=strategy))
    assert strategy == (BASELINE if step == "ask" else LAYER)
    assert handle.trials()[trial.number].value == 1000.0


def test_what_another_program_enqueued_is_not_run(handle: StudyHandle) -> None:
    handle.study.enqueue_trial({"mode": "default", "fullgraph": True})
    _, strategy = ask(handle, BASELINE)
    assert strategy == BASELINE
    assert [t.state for t in handle.trials()] == [TrialState.FAIL, TrialState.RUNNING]


def test_resuming_draws_something_else(storage: Storage) -> None:
    handle = opened(storage, sampler="random")
    trial, first = ask(handle)
    tell(handle, trial, record_of(Outcome.INTERRUPTED, first))
    _, second = ask(opened(storage, sampler="random"))
    assert first != second


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"budget_bytes": 16 * GIB}, "'s' was made with budget 24.0, not 16.0"),
        ({"key": "k2", "workload": study_of().workload.model_copy(update={"batch_size": 2})}, "batch_size 4, not 2"),
        ({"key": "k2", "environment": study_of().environment.model_copy(update={"device_name": "H"})}, "device_name"),
        ({"key": "k2"}, "was made with key key, not 'k2'"),
    ],
)
def test_a_study_of_another_key_is_refused(storage: Storage, changes: dict[str, Any], says: str) -> None:
    opened(storage)
    with pytest.raises(WrongInput, match=r"^study: ") as caught:
        opened(storage, study_record=study_of(**changes))
    assert says in str(caught.value)
    assert Records(storage.engine).study("s") == study_of()


def test_a_study_of_other_knobs_is_refused(storage: Storage) -> None:
    opened(storage).study.set_user_attr("knobs", "others")
    with pytest.raises(WrongInput, match="made with other knobs"):
        opened(storage)


def test_a_study_that_is_not_ours_is_refused(storage: Storage) -> None:
    theirs = optuna.create_study(storage=storage.optuna, study_name="s", direction="maximize")
    theirs.tell(theirs.ask(), 1.0)
    with pytest.raises(WrongInput, match="this tool did not make"):
        opened(storage)
    assert Records(storage.engine).study("s") is None


def test_default_names_tell_key_budget_and_knobs() -> None:
    name = default_name(study_of(key="0123456789abcdef"), CUDA)
    assert name.startswith("01234567-24gib-") and name != default_name(study_of(key="0123456789abcdef"), CUDA_8)
    assert default_name(study_of(key="0123456789abcdef", card="l4"), CUDA).startswith("01234567-l4-")


def test_a_card_is_another_study_than_its_size(storage: Storage) -> None:
    opened(storage)
    with pytest.raises(WrongInput, match=r"'s' was made with card none, not 'l4' \(give another --study"):
        opened(storage, study_record=study_of(card="l4"))


def test_a_new_study_begins_with_the_records_that_decide(storage: Storage, records: Records) -> None:
    old = opened(storage)
    launched(old, BASELINE, record_of(Outcome.OOM, needed_bytes=30 * GIB), records)
    launched(old, LAYER, record_of(tokens_per_s=1500.0), records)
    launched(old, {**LAYER, "scope": "whole"}, record_of(Outcome.INTERRUPTED), records)
    launched(old, {**LAYER, "dynamic": "true"}, record_of(peak_device_bytes=16 * GIB), records)
    smaller = study_of("smaller", budget_bytes=18 * GIB, limit_bytes=17 * GIB)
    handle = opened(storage, "smaller", study_record=smaller)
    assert seed_from_records(handle, records.for_key("key"), cap_bytes=16 * GIB, deadlines={}) == 2
    found = handle.trials()
    assert [t.state.name for t in found] == ["PRUNED", "COMPLETE"]
    assert found[1].value == 1000.0 and found[1].constraints == {"memory": 16 / 17 - 1}
    assert handle.known == {t.user_attrs["fingerprint"] for t in found}
    assert ask(handle)[1] not in (BASELINE, {**LAYER, "dynamic": "true"})


def test_seeding_again_adds_nothing(storage: Storage, records: Records) -> None:
    handle = opened(storage)
    launched(handle, LAYER, record_of(), records)
    again = opened(storage)
    assert again.known == set()
    assert seed_from_records(again, records.for_key("key"), **NOW) == 0
    assert again.known == {fingerprint(LAYER)} and len(again.trials()) == 1


def test_the_proof_is_what_a_new_study_learns(storage: Storage, records: Records) -> None:
    made = [record_of(strategy=LAYER), record_of(strategy=LAYER, role="proof", tokens_per_s=700.0), record_of()]
    handle = opened(storage)
    assert seed_from_records(handle, made, **NOW) == 2
    assert [t.value for t in handle.trials()] == [700.0, 1000.0]


def test_records_of_knobs_that_have_changed_are_left_out(storage: Storage) -> None:
    gone = record_of().model_copy(update={"strategy": {"colour": "red"}})
    value = record_of().model_copy(update={"strategy": {**BASELINE, "micro_batch": 64}})
    version = record_of().model_copy(update={"fingerprint": "of an older version"})
    handle = opened(storage)
    assert seed_from_records(handle, [gone, value, version], **NOW) == 0 and handle.known == set()


def test_sweep(storage: Storage, records: Records) -> None:
    dead = opened(storage)
    recorded, asked = ask(dead, LAYER)
    records.add(record_of(strategy=asked, number=recorded.number, tokens_per_s=1234.0))
    recovered, at_disk = ask(dead, {**LAYER, "scope": "whole"})
    lost, lost_strategy = ask(dead, BASELINE)
    half = dead.study.ask({"mode": distributions(CUDA)["mode"]})
    dead.study.enqueue_trial({"mode": "off"})

    def recover(number: int) -> TrialRecord | None:
        return record_of(Outcome.OOM, at_disk, number=number) if number == recovered.number else None

    handle = opened(storage)
    assert sweep(handle, records, recover) == [lost_strategy]
    found = handle.trials()
    assert [t.state.name for t in found] == ["COMPLETE", "PRUNED", "FAIL", "FAIL", "FAIL"]
    assert found[0].value == 1234.0 and found[lost.number].user_attrs["outcome"] == "interrupted"
    assert [r.outcome for r in records.for_study("s")] == [Outcome.OK, Outcome.OOM]
    assert half.number == 3 and sweep(handle, records) == [lost_strategy], "until it was asked again"
    launched(handle, lost_strategy, record_of(), records)
    assert sweep(handle, records) == []


def test_sweep_leaves_trials_in_flight_and_live_processes_alone(storage: Storage, records: Records) -> None:
    handle = opened(storage)
    ask(handle, BASELINE)
    held = records.acquire_lease("s")
    assert sweep(handle, records) == [] and handle.trials()[0].state is TrialState.RUNNING
    with records.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE tuner_lease SET host = 'elsewhere', pid = 7")
    with pytest.raises(MachineError, match="by process 7 on elsewhere"):
        sweep(opened(storage), records)
    records.release(held)


def test_an_orderly_interruption_is_asked_again(storage: Storage, records: Records) -> None:
    launched(opened(storage), LAYER, record_of(Outcome.INTERRUPTED), records)
    assert sweep(opened(storage), records) == [LAYER]


def test_an_ask_takes_a_moment_at_two_hundred_trials(storage: Storage) -> None:
    handle = opened(storage)
    made = [record_of(strategy=s, tokens_per_s=speed(s)) for s in SPACE.strategies[:: len(SPACE) // 200][:200]]
    assert seed_from_records(handle, made, **NOW) == 200
    times = []
    for _ in range(9):
        began = time.perf_counter()
        trial, strategy = ask(handle)
        times.append(time.perf_counter() - began)
        tell(handle, trial, record_of(strategy=strategy, tokens_per_s=speed(strategy)))
    assert statistics.median(times) < 0.3
