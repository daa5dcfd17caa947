"""What a worker left is kept, though its parent died; and nothing is taken for what it is not."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import landscape
from tests.tuner.made import WORKLOAD, study_of
from tests.tuner.searching import Bench, End, bench
from tests.tuner.test_requests import on_cpu
from tests.tuner.test_requests import requests as on_card
from tuner.kinds import Flag, Phase
from tuner.ledger import Ledger
from tuner.outcome import Outcome
from tuner.protocol import Event, TrialResult
from tuner.record import TrialRecord
from tuner.recovery import is_unrecorded, recover
from tuner.requests import Requests
from tuner.space import canonical
from tuner.study import ask
from tuner.trial_dir import TrialDir
from tuner.units import GIB

__all__ = ["bench"]
LAYER = canonical({"mode": "default", "scope": "layer"})


@pytest.fixture
def requests(tmp_path: Path) -> Requests:
    return on_cpu(tmp_path)


def left(requests: Requests, number: int = 4, write: bool = True, **fields: Any) -> TrialDir:
    """A folder as a worker leaves it."""
    folder = requests.folder(str(number))
    request = requests.make(LAYER, folder)
    folder.write_request(request)
    folder.append_event(Event(time=1000.0, event="phase", phase=Phase.LOAD))
    folder.log_path.write_text("a line\n")
    result = {"trial_uuid": request.trial_uuid} | landscape.result(LAYER, request.limit_bytes) | fields
    if write:
        folder.write_result(TrialResult.model_validate(result))
    return folder


def found(requests: Requests, number: int = 4) -> TrialRecord | None:
    return recover(number, requests, Ledger(study_of(limit_bytes=GIB), [], lambda _: None), lambda _: False)


def failed(failure_class: str) -> dict[str, Any]:
    failure = {"failure_class": failure_class, "phase": "first_step", "type": "E", "detail": "d"}
    return {"failure": failure, "throughput": None, "parity": None}


def test_a_whole_result_becomes_a_record(requests: Requests) -> None:
    folder = left(requests)
    record = found(requests)
    assert record is not None
    assert (record.outcome, record.number, record.role, record.source) == (Outcome.OK, 4, "search", "recovered")
    assert record.uuid == folder.read_request().trial_uuid and record.strategy == LAYER
    assert record.tokens_per_s == landscape.speed(LAYER) and record.peak_device_bytes == landscape.peak(LAYER)
    assert record.started_at == 1000.0 and record.seconds > 0


@pytest.mark.parametrize("failure_class", ["oom", "compile_error", "unstable", "wrong_result"])
def test_a_failure_is_a_result_too(requests: Requests, failure_class: str) -> None:
    left(requests, **failed(failure_class))
    record = found(requests)
    assert record is not None and record.outcome == failure_class


@pytest.mark.parametrize(
    "fields",
    [
        {"throughput": None},  # neither figures nor a failure
        {"phases": []},  # no peak: the parent's samples died with it
        failed("other"),
        failed("user_code"),
        {"trial_uuid": "of another trial"},
    ],
)
def test_what_says_too_little_is_asked_again(requests: Requests, fields: dict[str, Any]) -> None:
    left(requests, **fields)
    assert found(requests) is None


def test_nothing_was_left(requests: Requests) -> None:
    assert found(requests) is None
    left(requests, write=False)
    assert found(requests) is None
    requests.folder("5")
    assert found(requests, 5) is None, "killed before its request was written"


def test_half_a_file_is_none(requests: Requests) -> None:
    folder = left(requests)
    folder.result_path.write_text(folder.result_path.read_text()[:50])
    assert found(requests) is None
    folder.request_path.write_text("{")
    assert found(requests) is None


def test_the_last_folder_of_that_number_counts(requests: Requests) -> None:
    left(requests, 1)
    second = left(requests, 1)
    left(requests, 10)
    os.utime(second.path, (2e9, 2e9))
    record = found(requests, 1)
    assert record is not None and record.uuid == second.read_request().trial_uuid


def test_another_workloads_result_is_none(tmp_path: Path, requests: Requests) -> None:
    left(requests)
    other = on_cpu(tmp_path, workload=WORKLOAD.model_copy(update={"dropout": 0.5}))
    assert found(other) is None


def test_a_folder_of_an_earlier_database_is_not_taken(bench: Bench) -> None:
    bench.run(trials=3)
    with bench.open() as (opened, _):
        # The database is new, the folders are not: trial 3 dies before it has made its own.
        ask(opened.search.handle, LAYER)
    old = opened.search.requests.folder("3")
    request = opened.search.requests.make(canonical({}), old)
    old.write_request(request)
    fields = {"trial_uuid": request.trial_uuid} | landscape.result(request.strategy, GIB)
    old.write_result(TrialResult.model_validate(fields))
    again = bench.run(trials=1)
    assert again.heard.begun[0][1] == "mode=default, scope=layer", "asked again"
    assert all(record.source != "recovered" for record in again.session.records.for_study(again.session.study.name))


def test_a_recovered_record_is_told_and_known(bench: Bench) -> None:
    with bench.open() as (opened, _):
        trial, strategy = ask(opened.search.handle, LAYER)
        requests = opened.search.requests
        folder = requests.folder(str(trial.number))
        request = requests.make(strategy, folder)
        folder.write_request(request)
        fields = {"trial_uuid": request.trial_uuid} | landscape.result(strategy, request.limit_bytes)
        folder.write_result(TrialResult.model_validate(fields))
    again = bench.run(lambda *_: End(), trials=4)
    assert "mode=default, scope=layer" not in again.heard.strategies[:-1]
    first = again.session.search.handle.trials()[0]
    assert first.value == landscape.speed(LAYER) and first.user_attrs["source"] == "recovered"
    assert again.heard.begun[-1] == ("proof", "mode=default, scope=layer", "recovered")


def test_a_recovered_peak_is_less_the_base_line(tmp_path: Path) -> None:
    makes = on_card(tmp_path)
    folder = left(makes, phases=[{"phase": "steady", "seconds": 3.0, "device_bytes": 9 * GIB}])
    folder.write_request(folder.read_request().model_copy(update={"base_line_bytes": 2 * GIB}))
    record = found(makes)
    assert record is not None and record.peak_device_bytes == 7 * GIB


def unrecorded_proof(bench: Bench, role: str = "proof") -> str:
    """A search whose parent died after its proof's result was written; return the proof's uuid."""
    with bench.open(trials=3) as (opened, executor):
        opened.search.run()
        request, folder = executor.requests[-1]
        assert request.role == "proof"
        folder.write_request(request.model_copy(update={"role": role}))
        fields = {"trial_uuid": request.trial_uuid} | landscape.result(request.strategy, request.limit_bytes)
        folder.write_result(TrialResult.model_validate(fields))
    with sqlite3.connect("studies/tuner.db") as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("DELETE FROM tuner_phase WHERE trial_uuid = ?", (request.trial_uuid,))
        assert connection.execute("DELETE FROM tuner_trial WHERE uuid = ?", (request.trial_uuid,)).rowcount == 1
    return request.trial_uuid


def test_a_proof_that_ended_as_its_parent_died_is_kept_and_not_run_again(bench: Bench) -> None:
    uuid = unrecorded_proof(bench)
    again = bench.run(trials=1, fix={"mode": "off"})
    assert "proof" not in again.heard.roles
    best = again.session.search.ledger.best()
    assert best is not None and (best.uuid, best.role, best.source, best.number) == (uuid, "proof", "recovered", None)
    assert [r.uuid for r in again.session.records.for_study(again.session.study.name)].count(uuid) == 1


def test_a_run_is_kept_too_and_proves_nothing(bench: Bench) -> None:
    uuid = unrecorded_proof(bench, "run")
    again = bench.run(trials=1, fix={"mode": "off"})
    kept = [r for r in again.session.records.for_study(again.session.study.name) if r.uuid == uuid]
    assert [r.role for r in kept] == ["run"] and again.heard.roles[-1] == "proof"


def test_a_proof_of_an_earlier_database_is_not_taken(bench: Bench) -> None:
    unrecorded_proof(bench)
    for path in Path("studies").glob("tuner.db*"):
        path.unlink()
    again = bench.run(trials=3)
    assert again.heard.roles[-1] == "proof"
    assert all(r.source != "recovered" for r in again.session.records.for_study(again.session.study.name))


def test_a_retry_stays_one(requests: Requests) -> None:
    folder = left(requests)
    folder.write_request(folder.read_request().model_copy(update={"role": "retry"}))
    record = found(requests)
    assert record is not None and record.role == "retry"


# Twin tests.

DROPPING: dict[str, Any] = {"dropout": 0.05, "fix": {"mode": "off", "checkpointing": "every-block", "micro_batch": 1}}


def unrecorded(bench: Bench, role: str, answer: Any = lambda *_: None, **spec: Any) -> TrialResult:
    """A search whose parent died before it recorded what its first `role` had left; return that."""
    with bench.open(answer, **spec) as (opened, executor):
        opened.search.run()
        request, folder = next((r, f) for r, f in executor.requests if r.role == role)
        folder.write_request(request)
        fields = {"trial_uuid": request.trial_uuid} | landscape.result(request.strategy, request.limit_bytes)
        fields["parity"] |= {"with_dropout": request.workload.dropout > 0}
        if request.twin is not None:
            fields |= {"throughput": None, "twin_parity": landscape.parity(), "layers": 2}
        result = TrialResult.model_validate(fields)
        folder.write_result(result)
    with sqlite3.connect("studies/tuner.db") as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        for table, column in (("tuner_phase", "trial_uuid"), ("tuner_trial", "uuid")):
            connection.execute(f"DELETE FROM {table} WHERE {column} = ?", (request.trial_uuid,))
    return result


def test_a_twin_test_that_ended_as_its_parent_died_is_kept_and_not_run_again(bench: Bench) -> None:
    left = unrecorded(bench, "twin", trials=2, **DROPPING)
    again = bench.run(trials=2, **DROPPING)
    twin = [r for r in again.session.records.for_study(again.session.study.name) if r.uuid == left.trial_uuid]
    assert [(r.role, r.outcome, r.source) for r in twin] == [("twin", Outcome.OK, "twin test: without recomputing")]
    assert twin[0].key != again.session.study.key, "a slice has a key of its own"
    ran_again = [r for r, _ in again.executor.requests if r.twin == twin[0].twin and r.workload.dropout > 0]
    assert ran_again == []
    third = bench.run(trials=1, **DROPPING)
    assert [r.uuid for r in third.session.records.for_key(twin[0].key)].count(left.trial_uuid) == 1


def test_its_folder_is_not_cleaned_away(bench: Bench) -> None:
    left = unrecorded(bench, "twin", trials=2, **DROPPING)
    (folder,) = [p.parent for p in Path("studies").glob("*/*/result.json") if left.trial_uuid in p.read_text()]
    assert is_unrecorded(folder, ()) and not is_unrecorded(folder, {left.trial_uuid})


def test_a_recovered_proof_was_checked_on_the_slice_as_well(bench: Bench) -> None:
    compiled = DROPPING | {"fix": {"mode": "default", "scope": "layer", "checkpointing": "off"}}
    left = unrecorded(bench, "proof", trials=4, **compiled)
    again = bench.run(trials=1, **compiled)
    (proof,) = [r for r in again.session.records.for_study(again.session.study.name) if r.uuid == left.trial_uuid]
    assert proof.role == "proof" and Flag.CHECKED_ON_SLICE in proof.flags and Flag.UNCHECKED not in proof.flags
