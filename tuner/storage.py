"""Where studies are kept: the only code that knows URLs, engines and PRAGMAs."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import optuna
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from optuna.storages._rdb.models import BaseModel as OptunaModel
from sqlalchemy import Engine, create_engine, event, inspect, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError

from tuner.errors import Interrupted, MachineError, WrongInput, nearest
from tuner.mounts import network_file_system
from tuner.stopping import never

DEFAULT_FILE = Path("studies") / "tuner.db"
"""Below the working directory."""
OUR_PREFIX = "tuner_"
BUSY_SECONDS = 60.0
"""How long one statement waits for a database that another process has locked."""
RETRY_SECONDS = 75.0
"""How long a failed transaction is tried again after that."""
STOP_SECONDS = 5.0
"""How long it is still tried once the end was asked for: what was measured is worth as much."""
_SLICE_SECONDS = 0.5
"""Python hears no signal while SQLite waits."""
SCHEMES = ("sqlite", "postgresql", "postgresql+psycopg")
_OPTUNA_TABLES = frozenset(OptunaModel.metadata.tables) | {"alembic_version"}
_OPTUNA_MARKS = frozenset({"studies", "trials", "version_info"})
_PASSING = ("locked", "deadlock", "server closed", "connection refused", "terminating connection", "starting up")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """One open database: Optuna's tables and ours, through one engine."""

    optuna: RDBStorage
    engine: Engine
    url: str
    """As a person may see it: a password is left out."""
    path: Path | None
    """The SQLite file; None on a server."""
    notes: tuple[str, ...] = ()
    """Lines to be said to the user."""
    retry_seconds: float = RETRY_SECONDS
    stopped: Callable[[], bool] = never
    """Has the user, or the system, asked for the end? Then there is little patience left."""

    def retry(self, action: Callable[[], T]) -> T:
        """Return `action()`, tried again while the database is locked or away.

        `action` is one transaction, or harmless to repeat.

        Raises:
            MachineError: it was so for `retry_seconds`.
            Interrupted: the end was asked for, and it was still so `STOP_SECONDS` later.
        """
        deadline, pause = time.monotonic() + self.retry_seconds, 0.05
        last_try: float | None = None
        while True:
            try:
                return action()
            except (StorageInternalError, DBAPIError) as error:
                if not _will_pass(error):
                    raise
                if last_try is None and self.stopped():
                    last_try = time.monotonic() + STOP_SECONDS
                if last_try is not None and time.monotonic() > last_try:
                    raise Interrupted(f"interrupted while {self.url} was locked or away") from error
                if time.monotonic() + pause > deadline:
                    raise MachineError(f"storage: {self.url} stayed locked or away ({_cause(error)})") from error
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, 5.0 if last_try is None else 0.5)

    def close(self) -> None:
        """Close every connection."""
        self.optuna.scoped_session.remove()
        self.engine.dispose()


def open_storage(
    url: str | None,
    base: Path,
    *,
    create: bool = True,
    busy_seconds: float = BUSY_SECONDS,
    retry_seconds: float = RETRY_SECONDS,
    stopped: Callable[[], bool] = never,
) -> Storage:
    """Open the database at `url`; without one, the SQLite file ``studies/tuner.db`` below `base`.

    Args:
        create: make what is missing; without it a missing SQLite file is wrong input.
        stopped: has the user, or the system, asked for the end?

    Raises:
        Interrupted: so it is.
        WrongInput: the URL, folder, file or schema cannot be used.
        MachineError: the server cannot be reached.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    parsed = URL.create("sqlite", database=str(base / DEFAULT_FILE)) if url is None else _parse(url)
    if parsed.get_backend_name() == "sqlite":
        return _open_sqlite(parsed, base, create, busy_seconds, retry_seconds, stopped)
    arguments = {"pool_pre_ping": True, "connect_args": {"connect_timeout": 10}}
    shown = parsed.render_as_string(hide_password=True)
    rdb = _open_optuna(parsed, arguments, shown)
    return Storage(optuna=rdb, engine=rdb.engine, url=shown, path=None, retry_seconds=retry_seconds, stopped=stopped)


def _parse(url: str) -> URL:
    scheme = url.partition("://")[0] if "://" in url else None
    if scheme is None:
        raise WrongInput("storage", "must be a URL", url, f"did you mean 'sqlite:///{url}'?")
    if scheme not in SCHEMES:
        raise WrongInput("storage", "must begin with sqlite:/// or postgresql://", url, nearest(scheme, SCHEMES))
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise WrongInput("storage", "is not a URL that SQLAlchemy can read", url) from error
    if scheme == "sqlite" and (parsed.host or parsed.database in (None, "", ":memory:")):
        raise WrongInput("storage", "must name a file, as sqlite:///studies/tuner.db", url)
    return parsed


def _open_sqlite(url: URL, base: Path, create: bool, busy: float, retry: float, stopped: Callable[[], bool]) -> Storage:
    path = (base / str(url.database)).resolve()
    if not create and not path.exists():
        raise WrongInput("storage", f"there is no database at {path} yet", hint="`tuner search` makes it")
    network = network_file_system(path.parent)
    notes = _prepare_file(path, network, busy, stopped)
    url = url.set(database=str(path))
    arguments: dict[str, Any] = {"connect_args": {"timeout": busy}}
    shown = url.render_as_string()
    rdb = _open_optuna(url, arguments, shown)
    event.listen(rdb.engine, "connect", _set_pragmas)
    # The connections made so far have not met the listener.
    rdb.engine.dispose()
    return Storage(
        optuna=rdb, engine=rdb.engine, url=shown, path=path, notes=notes, retry_seconds=retry, stopped=stopped
    )


def _set_pragmas(connection: sqlite3.Connection, _record: object) -> None:
    # With WAL, NORMAL survives a crash of the process; only a power cut may cost the last transactions.
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA foreign_keys=ON")


def _prepare_file(path: Path, network: str | None, busy: float, stopped: Callable[[], bool]) -> tuple[str, ...]:
    """Check that `path` is, or can be, a database of ours, and choose its journal; return the notes."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WrongInput("storage", f"the folder {path.parent} cannot be made ({error.strerror})") from error
    wanted, deadline = "delete" if network else "wal", time.monotonic() + busy
    try:
        while (mode := _set_journal(path, wanted, min(busy, _SLICE_SECONDS), deadline)) is None:
            if stopped():
                raise Interrupted(f"interrupted while {path} was locked by another process")
    except sqlite3.DatabaseError as error:
        _refuse_file(path, error)
    if network:
        return (f"{path} lies on a network file system ({network}): WAL is not used there.",)
    return () if mode == wanted else (f"WAL cannot be used for {path}: the journal mode stays {mode}.",)


def _set_journal(path: Path, wanted: str, slice_seconds: float, deadline: float) -> str | None:
    """Return the journal mode that the file now has; None: it is locked, and `deadline` is not reached."""
    with closing(sqlite3.connect(path, timeout=slice_seconds)) as connection:
        try:
            names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")}
            _check_owner(names - {"sqlite_sequence"}, str(path))
            connection.execute("BEGIN IMMEDIATE")
            connection.rollback()
            return str(connection.execute(f"PRAGMA journal_mode={wanted}").fetchone()[0])
        except sqlite3.OperationalError as error:
            if "locked" in str(error) and time.monotonic() < deadline:
                return None
            raise


def _refuse_file(path: Path, error: sqlite3.DatabaseError) -> NoReturn:
    text = str(error)
    if "locked" in text:
        raise MachineError(f"storage: {path} is locked by another process") from error
    if "unable to open" in text or "readonly" in text:
        raise WrongInput("storage", f"{path} cannot be opened for writing ({text})") from error
    raise WrongInput("storage", f"{path} is not a SQLite database ({text})") from error


def _check_owner(tables: set[str], where: str) -> None:
    ours = any(name.startswith(OUR_PREFIX) for name in tables)
    foreign = sorted(tables - _OPTUNA_TABLES)
    if foreign and not ours and not tables >= _OPTUNA_MARKS:
        raise WrongInput("storage", f"{where} belongs to another program (table {foreign[0]!r}, none of ours)")


def _open_optuna(url: URL, arguments: dict[str, Any], shown: str) -> RDBStorage:
    """Open Optuna's part; nothing is written into a database that turns out to be another's."""
    try:
        engine = create_engine(url, **arguments)
        tables = set(inspect(engine).get_table_names())
        engine.dispose()
        _check_owner(tables, shown)
        # Optuna calls str.format on the URL.
        secret = url.render_as_string(hide_password=False).replace("{", "{{").replace("}", "}}")
        return _construct(secret, arguments, complete=tables >= _OPTUNA_TABLES)
    except (ImportError, NoSuchModuleError) as error:
        raise WrongInput("storage", f"the driver for {shown} is not installed ({error})") from error
    except (OperationalError, StorageInternalError) as error:
        raise MachineError(f"storage: {shown} cannot be reached ({_cause(error)})") from error
    except RuntimeError as error:
        raise WrongInput("storage", f"{shown} has another version of Optuna's tables: {error}") from error


def _construct(url: str, arguments: dict[str, Any], *, complete: bool) -> RDBStorage:
    for _ in range(3):
        try:
            return RDBStorage(url, engine_kwargs=arguments, skip_table_creation=complete)
        except DBAPIError as error:
            # Two processes may make the tables of a new database at the same time.
            if "already exists" not in str(error.orig):
                raise
    return RDBStorage(url, engine_kwargs=arguments, skip_table_creation=complete)


def _will_pass(error: BaseException) -> bool:
    cause = error.__cause__ if isinstance(error, StorageInternalError) else error
    if not isinstance(cause, DBAPIError):
        return False
    return cause.connection_invalidated or any(word in str(cause.orig).lower() for word in _PASSING)


def _cause(error: BaseException) -> str:
    inner = error.__cause__ if isinstance(error, StorageInternalError) else error
    text = str(inner.orig if isinstance(inner, DBAPIError) else inner).strip()
    return text.splitlines()[0] if text else type(error).__name__
