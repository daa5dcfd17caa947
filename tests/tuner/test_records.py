"""Our tables, on SQLite and on PostgreSQL."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from sqlalchemy import insert, inspect, text

from tests.tuner.made import out_of_memory, record_of, result_of, study_of, throughput_of
from tests.tuner.postgres import postgres_server, postgres_url
from tuner import lease
from tuner.errors import MachineError, WrongInput
from tuner.kinds import Phase
from tuner.lease import process_started, this_process
from tuner.measured import Parity, PhaseRecord
from tuner.outcome import Outcome
from tuner.processes import pid_namespace
from tuner.records import Records
from tuner.storage import Storage, open_storage
from tuner.tables import LeaseRow
from tuner.units import GIB

__all__ = ["postgres_server", "postgres_url"]


@pytest.fixture(params=["sqlite", "postgresql"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    url = None if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    opened = open_storage(url, tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def records(storage: Storage) -> Records:
    return Records(storage.engine, storage.retry)


def rows(records: Records, query: str) -> list[tuple[object, ...]]:
    with records.engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text(query))]


def test_tables_carry_our_prefix_and_refer_to_no_other(records: Records) -> None:
    tables = {name for name in inspect(records.engine).get_table_names() if name.startswith("tuner_")}
    assert tables == {
        *("tuner_meta", "tuner_workload", "tuner_environment", "tuner_study"),
        *("tuner_trial", "tuner_phase", "tuner_failure", "tuner_lease"),
    }
    keys = [key for name in tables for key in inspect(records.engine).get_foreign_keys(name)]
    assert keys and all(key["referred_table"] in tables for key in keys)


def test_a_record_comes_back_whole(records: Records) -> None:
    record = record_of(
        Outcome.OOM,
        {"mode": "default"},
        kind="suspected",
        phase=Phase.FIRST_STEP,
        flags=("tight", "emulated"),
        number=3,
        needed_bytes=25 * GIB,
        deadlines={Phase.FIRST_STEP: 180.0},
        tail="a log with \x00 in it",
        detail="NUL \x00 here",
        result=result_of(failure=out_of_memory(detail="ü €", traceback="\x00")),
    )
    records.add(record)
    assert records.for_key("key") == [record] and records.for_study("s") == [record]
    assert records.for_key("other") == [] and records.for_study("other") == []


def test_half_a_surrogate_pair_costs_one_character(records: Records) -> None:
    records.add(record_of(detail="what \udc80", result=result_of(failure=out_of_memory(detail="\ud800"))))
    found = records.for_key("key")[0]
    assert found.detail == "what ?" and found.result and found.result.failure and found.result.failure.detail == "?"


def test_a_loss_of_nan_is_kept_as_what_it_is(records: Records) -> None:
    parity = Parity(
        loss=math.nan,
        gradient=(1.0, math.inf),
        gradient_norm=math.inf,
        tensors_without_gradient=0,
        parameter_changed=True,
    )
    records.add(record_of(Outcome.WRONG_RESULT, result=result_of(parity=parity)))
    found = records.for_key("key")[0].result
    assert found and found.parity and math.isnan(found.parity.loss) and found.parity.gradient == (1.0, math.inf)


def test_adding_twice_changes_nothing(records: Records) -> None:
    record = record_of(result=result_of())
    records.add(record)
    records.add(record.model_copy(update={"detail": "another"}))
    assert records.for_key("key") == [record]
    assert rows(records, "SELECT count(*) FROM tuner_phase") == [(2,)]


def test_records_keep_their_order(records: Records) -> None:
    made = [record_of(started_at=100.0 - i) for i in range(5)]
    for record in made:
        records.add(record)
    assert records.for_key("key") == made


def test_plain_sql_answers_the_peak_of_every_trial_in_its_first_step(records: Records) -> None:
    for number in range(3):
        records.add(record_of(number=number, result=result_of(first_step_bytes=(number + 5) * GIB)))
    query = """
        SELECT t.number, p.device_bytes FROM tuner_trial t JOIN tuner_phase p ON p.trial_uuid = t.uuid
        WHERE t.study = 's' AND p.phase = 'first_step' ORDER BY t.number"""
    assert rows(records, query) == [(0, 5 * GIB), (1, 6 * GIB), (2, 7 * GIB)]


def test_the_columns_hold_what_the_record_holds(records: Records) -> None:
    failure = out_of_memory(step=1)
    records.add(
        record_of(flags=("warm", "tight"), kind="nan", result=result_of(failure=failure, throughput=throughput_of()))
    )
    assert rows(records, "SELECT outcome, kind, flags, tokens_per_s, step_seconds, role FROM tuner_trial") == [
        ("ok", "nan", "warm tight", 1000.0, 0.5, "search")
    ]
    assert rows(records, "SELECT phase, seconds, steps, retries FROM tuner_phase ORDER BY position") == [
        ("load", 2.0, 0, 0),
        ("first_step", 9.0, 1, 2),
    ]
    assert rows(records, "SELECT failure_class, phase, step, type, needed_bytes FROM tuner_failure") == [
        ("oom", "first_step", 1, "torch.OutOfMemoryError", 25 * GIB)
    ]


def test_a_database_of_an_earlier_version_gets_its_new_columns_with_the_next_record(
    records: Records, storage: Storage
) -> None:
    records.add(record_of(result=result_of()))
    with records.engine.begin() as connection:
        for column in ("ooms", "graph_pool_bytes"):
            connection.execute(text(f"ALTER TABLE tuner_phase DROP COLUMN {column}"))
    opened = Records(storage.engine, storage.retry)
    assert len(opened.for_key("key")) == 1
    assert "ooms" not in {c["name"] for c in inspect(records.engine).get_columns("tuner_phase")}, (
        "reading writes nothing"
    )
    phase = PhaseRecord(phase=Phase.STEADY, seconds=1.0, ooms=3, graph_pool_bytes=5 * GIB)
    opened.add(record_of(result=result_of().model_copy(update={"phases": (phase,)})))
    assert rows(opened, "SELECT ooms, graph_pool_bytes FROM tuner_phase ORDER BY seconds") == [
        (3, 5 * GIB),
        (None, None),
        (None, None),
    ]


def test_rows_go_with_their_trial(records: Records) -> None:
    records.add(record_of(result=result_of(failure=out_of_memory())))
    with records.engine.begin() as connection:
        connection.execute(text("DELETE FROM tuner_trial"))
    assert rows(records, "SELECT uuid FROM tuner_trial") == rows(records, "SELECT trial_uuid FROM tuner_phase") == []
    assert rows(records, "SELECT trial_uuid FROM tuner_failure") == []


def test_deleting_an_optuna_study_works_and_leaves_records(records: Records, storage: Storage) -> None:
    optuna.create_study(storage=storage.optuna, study_name="s")
    records.add(record_of(number=0))
    optuna.delete_study(study_name="s", storage=storage.optuna)
    assert optuna.get_all_study_names(storage.optuna) == [] and len(records.for_study("s")) == 1


def test_studies(records: Records) -> None:
    assert records.studies() == [] and records.latest_study() is None and records.study("s") is None
    old, new = study_of("old", created_at=1.0), study_of("new", created_at=2.0, budget_bytes=16 * GIB)
    records.add_study(old)
    records.add_study(new)
    for outcome in (Outcome.OK, Outcome.OOM, Outcome.OOM):
        records.add(record_of(outcome, study="old"))
    assert records.study("old") == old and records.latest_study() == new
    summaries = records.studies()
    assert [s.study for s in summaries] == [old, new]
    assert summaries[0].counts == {Outcome.OK: 1, Outcome.OOM: 2} and summaries[1].counts == {}
    assert rows(records, "SELECT count(*) FROM tuner_workload") == [(1,)]


def test_neither_twin_tests_nor_what_they_forbade_are_launches(records: Records) -> None:
    records.add_study(study_of("s"))
    records.add(record_of(Outcome.OK))
    test = record_of(Outcome.WRONG_RESULT, role="twin")
    records.add(test)
    records.add(record_of(Outcome.WRONG_RESULT, twin_uuid=test.uuid, seconds=0.0))
    assert records.studies()[0].counts == {Outcome.OK: 1}


def test_a_study_that_is_used_again_is_the_latest(records: Records) -> None:
    records.add_study(study_of("first"))
    records.add_study(study_of("second"))
    records.add_study(study_of("first", created_at=99.0, limit_bytes=22 * GIB))
    assert records.latest_study() == study_of("first", created_at=1.0, limit_bytes=22 * GIB)


def test_tables_of_a_newer_version_are_refused(records: Records, storage: Storage) -> None:
    Records(storage.engine)
    with records.engine.begin() as connection:
        connection.execute(text("UPDATE tuner_meta SET value = '99' WHERE name = 'schema_version'"))
        connection.execute(text("DROP TABLE tuner_lease"))
    with pytest.raises(WrongInput, match="version 99, and this version of the tuner knows 1"):
        Records(storage.engine)
    assert not inspect(records.engine).has_table("tuner_lease"), "nothing is written into a newer database"


def test_a_live_lease_is_refused_and_released(records: Records) -> None:
    held = records.acquire_lease("s")
    assert records.lease_holder("s") == held and records.lease_holder("other") is None
    with pytest.raises(MachineError, match=f"by process {held.pid} on {held.host}"):
        records.acquire_lease("s")
    records.beat(held)
    records.release(held)
    assert records.lease_holder("s") is None
    records.release(records.acquire_lease("s"))


def _hold(records: Records, study: str, **changes: object) -> None:
    values = {name: getattr(this_process(study), name) for name in lease.Lease.__slots__} | changes
    with records.engine.begin() as connection:
        connection.execute(insert(LeaseRow).values(values))


def test_the_lease_of_a_dead_process_is_taken_over(records: Records) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    _hold(records, "ended", pid=gone.pid)
    _hold(records, "another with this pid", process_started=1)
    _hold(records, "before the last boot", boot_id=f"another:{pid_namespace()}")
    elsewhere = {"boot_id": f"another:{pid_namespace() + 1}", "beat_at": 0.0}
    _hold(records, "silent in another container", **elsewhere)
    _hold(records, "silent elsewhere", host="elsewhere", beat_at=0.0)
    ended = ("ended", "another with this pid", "before the last boot")
    for study in (*ended, "silent elsewhere", "silent in another container"):
        assert records.lease_holder(study) is None
        held = records.acquire_lease(study)
        assert records.lease_holder(study) == held


def test_a_lease_on_another_host_is_live_while_it_beats(records: Records) -> None:
    _hold(records, "s", host="elsewhere", pid=1)
    with pytest.raises(MachineError, match="by process 1 on elsewhere"):
        records.acquire_lease("s")


def test_a_lease_in_another_container_of_this_host_name_is_live_while_it_beats(records: Records) -> None:
    boot_id = this_process("s").boot_id.partition(":")[0]
    # Its process number is nobody's here, or somebody else's.
    _hold(records, "s", boot_id=f"{boot_id}:{pid_namespace() + 1}", pid=4_194_303)
    with pytest.raises(MachineError, match="by process 4194303"):
        records.acquire_lease("s")


def test_a_beat_tells_that_the_lease_was_taken_over(records: Records) -> None:
    held = records.acquire_lease("s")
    records.release(held)
    records.acquire_lease("s")
    with pytest.raises(MachineError, match="taken over"):
        records.beat(held)


def test_of_two_that_find_a_dead_lease_one_wins(records: Records) -> None:
    _hold(records, "s", boot_id=f"another:{pid_namespace()}")
    dead = lease.holder(records.engine, "s")
    assert lease._take(records.engine, this_process("s"), dead)
    assert not lease._take(records.engine, this_process("s"), dead)
    assert not lease._take(records.engine, this_process("s"), None)


def test_a_zombie_is_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    assert process_started(child.pid) is not None
    assert child.stdin
    child.stdin.close()
    # Ended and not yet waited for: a zombie.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process_started(child.pid) is None
    child.wait()
