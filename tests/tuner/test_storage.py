"""The database: made on first use, refused when it is another's, waited for when it is locked."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import optuna
import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from tests.tuner.postgres import postgres_server, postgres_url
from tuner import storage as storages
from tuner.errors import Interrupted, MachineError, WrongInput
from tuner.storage import Storage, open_storage

__all__ = ["postgres_server", "postgres_url"]

SPACE: dict[str, optuna.distributions.BaseDistribution] = {
    "mode": optuna.distributions.CategoricalDistribution(("off", "default"))
}


@contextmanager
def locked(path: Path, seconds: float) -> Iterator[None]:
    """Another connection holds the database for `seconds`, from the start of the block on."""
    ready = threading.Event()

    def hold() -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            ready.set()
            time.sleep(seconds)
            connection.execute("ROLLBACK")

    thread = threading.Thread(target=hold)
    thread.start()
    assert ready.wait(10)
    yield
    thread.join()


def studied(storage: Storage) -> optuna.Study:
    return optuna.create_study(storage=storage.optuna, study_name="s", direction="maximize")


def pragma(storage: Storage, name: str) -> object:
    with storage.engine.connect() as connection:
        return connection.execute(text(f"PRAGMA {name}")).scalar()


def test_the_default_is_made_on_first_use(tmp_path: Path) -> None:
    storage = open_storage(None, tmp_path)
    assert storage.path == tmp_path / "studies" / "tuner.db" and storage.path.exists()
    assert storage.notes == () and storage.url == f"sqlite:///{storage.path}"
    studied(storage)
    assert [s.study_name for s in optuna.get_all_study_summaries(open_storage(None, tmp_path).optuna)] == ["s"]


def test_a_relative_url_lies_below_the_working_directory(tmp_path: Path) -> None:
    assert open_storage("sqlite:///mine.db", tmp_path).path == tmp_path / "mine.db"


def test_a_path_with_odd_characters(tmp_path: Path) -> None:
    folder = tmp_path / "a {b} 50% ü"
    storage = open_storage(None, folder)
    studied(storage).ask(SPACE)
    assert [p.name for p in folder.iterdir()] == ["studies"] and storage.path and storage.path.stat().st_size > 0


def test_wal_and_the_other_pragmas(tmp_path: Path) -> None:
    storage = open_storage(None, tmp_path)
    assert pragma(storage, "journal_mode") == "wal"
    assert pragma(storage, "synchronous") == 1
    assert pragma(storage, "foreign_keys") == 1
    assert pragma(storage, "busy_timeout") == 60_000


def test_no_wal_on_a_network_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_storage(None, tmp_path).close()
    monkeypatch.setattr("tuner.storage.network_file_system", lambda path: "nfs4")
    storage = open_storage(None, tmp_path)
    assert pragma(storage, "journal_mode") == "delete"
    assert storage.notes == (f"{storage.path} lies on a network file system (nfs4): WAL is not used there.",)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://host/db", "must begin with sqlite:/// or postgresql://, not 'mysql://host/db'"),
        ("postgre://host/db", "did you mean 'postgresql'?"),
        ("studies/tuner.db", "did you mean 'sqlite:///studies/tuner.db'?"),
        ("sqlite://", "must name a file"),
        ("sqlite:///:memory:", "must name a file"),
        ("sqlite://studies/tuner.db", "must name a file"),
        ("postgresql://host:port/db", "is not a URL"),
    ],
)
def test_a_url_that_cannot_be_used(tmp_path: Path, url: str, says: str) -> None:
    with pytest.raises(WrongInput, match=r"^storage: ") as caught:
        open_storage(url, tmp_path)
    assert says in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "studies").write_text("a file")
    with pytest.raises(WrongInput, match=r"the folder .*studies cannot be made"):
        open_storage(None, tmp_path)


def test_a_database_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "studies" / "tuner.db").mkdir(parents=True)
    with pytest.raises(WrongInput, match="cannot be opened for writing"):
        open_storage(None, tmp_path)


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_text("dear diary " * 100)
    with pytest.raises(WrongInput, match=r"notes\.db is not a SQLite database"):
        open_storage("sqlite:///notes.db", tmp_path)
    assert (tmp_path / "notes.db").read_text() == "dear diary " * 100


def test_a_database_of_another_program(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as connection:
        connection.execute("CREATE TABLE experiments (id INTEGER)")
        connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
    before = (tmp_path / "mlflow.db").read_bytes()
    with pytest.raises(WrongInput, match=r"belongs to another program .table 'experiments'"):
        open_storage("sqlite:///mlflow.db", tmp_path)
    assert (tmp_path / "mlflow.db").read_bytes() == before


def test_a_database_of_optuna_is_taken(tmp_path: Path) -> None:
    optuna.create_study(storage=f"sqlite:///{tmp_path}/optuna.db", study_name="theirs")
    storage = open_storage("sqlite:///optuna.db", tmp_path)
    assert optuna.load_study(study_name="theirs", storage=storage.optuna).trials == []


def test_optuna_tables_of_another_version(tmp_path: Path) -> None:
    storage = open_storage(None, tmp_path)
    with storage.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'v9.9.9.a'"))
    with pytest.raises(WrongInput, match="another version of Optuna's tables"):
        open_storage(None, tmp_path)


def test_a_missing_database_is_not_made_for_a_reader(tmp_path: Path) -> None:
    with pytest.raises(WrongInput, match="there is no database at"):
        open_storage(None, tmp_path, create=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", ["ask", "tell"])
def test_a_lock_longer_than_sqlites_own_five_seconds_loses_nothing(tmp_path: Path, step: str) -> None:
    storage = open_storage(None, tmp_path)
    study = studied(storage)
    trial = study.ask(SPACE)
    act: dict[str, Callable[[], object]] = {"ask": lambda: study.ask(SPACE), "tell": lambda: study.tell(trial, 1.0)}
    assert storage.path
    with locked(storage.path, 7.0):
        began = time.monotonic()
        act[step]()
        assert time.monotonic() - began > 6
    assert len(study.trials) == (2 if step == "ask" else 1)
    assert step == "ask" or study.best_value == 1.0


def test_retry_outlasts_the_busy_timeout(tmp_path: Path) -> None:
    storage = open_storage(None, tmp_path, busy_seconds=0.1, retry_seconds=30)
    study = studied(storage)
    trial = study.ask(SPACE)
    assert storage.path
    with locked(storage.path, 1.5):
        with pytest.raises(optuna.exceptions.StorageInternalError):
            study.tell(trial, 2.0)
        storage.retry(lambda: study.tell(trial, 2.0))
    assert study.best_value == 2.0


def test_retry_gives_up_with_one_sentence(tmp_path: Path) -> None:
    storage = open_storage(None, tmp_path, busy_seconds=0.05, retry_seconds=0.3)
    study = studied(storage)
    trial = study.ask(SPACE)
    assert storage.path
    with locked(storage.path, 1.5), pytest.raises(MachineError, match=r"stayed locked or away \(database is locked\)"):
        storage.retry(lambda: study.tell(trial, 2.0))


def test_retry_passes_on_what_will_not_pass(tmp_path: Path) -> None:
    storage = open_storage(None, tmp_path)
    calls: list[int] = []

    def wrong() -> None:
        calls.append(1)
        with storage.engine.connect() as connection:
            connection.execute(text("SELECT * FROM nowhere"))

    with pytest.raises(Exception, match="no such table"):
        storage.retry(wrong)
    assert calls == [1]


def test_postgresql(tmp_path: Path, postgres_url: str) -> None:
    storage = open_storage(postgres_url, tmp_path)
    study = studied(storage)
    study.tell(study.ask(SPACE), 3.0)
    assert storage.path is None and storage.notes == () and list(tmp_path.iterdir()) == []
    assert optuna.load_study(study_name="s", storage=open_storage(postgres_url, tmp_path).optuna).best_value == 3.0


def test_postgresql_of_another_program(tmp_path: Path, postgres_url: str) -> None:
    storage = open_storage(postgres_url, tmp_path)
    with storage.engine.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
        connection.execute(text("CREATE TABLE experiments (id INTEGER)"))
    with pytest.raises(WrongInput, match="belongs to another program"):
        open_storage(postgres_url, tmp_path)


def test_a_server_that_cannot_be_reached(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="cannot be reached") as caught:
        open_storage(f"postgresql://me:secret@/db?host={tmp_path}", tmp_path)
    assert "secret" not in str(caught.value) and "\n" not in str(caught.value)


def test_a_stop_is_heard_while_the_file_is_locked(tmp_path: Path) -> None:
    open_storage(None, tmp_path).close()
    begun = time.monotonic()
    with closing(sqlite3.connect(tmp_path / "studies" / "tuner.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(Interrupted, match="locked"):
            open_storage(None, tmp_path, stopped=lambda: True)
    assert time.monotonic() - begun < 10


def test_a_stopped_search_is_patient_for_a_moment_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storages, "STOP_SECONDS", 0.3)
    storage = open_storage(None, tmp_path, retry_seconds=60, stopped=lambda: True)
    begun, tried = time.monotonic(), []

    def action() -> None:
        tried.append(1)
        raise OperationalError("UPDATE", {}, sqlite3.OperationalError("database is locked"))

    with pytest.raises(Interrupted, match="locked"):
        storage.retry(action)
    assert time.monotonic() - begun < 5 and len(tried) > 1, "what was measured is still worth a few tries"
    storage.close()
