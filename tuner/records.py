"""Our own tables, the truth about what was measured: how records are written and read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Engine, Select, func, inspect, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from sqlalchemy.schema import CreateColumn

from tuner import lease
from tuner.errors import WrongInput
from tuner.lease import Lease
from tuner.outcome import Outcome
from tuner.record import Role, StudyRecord, StudySummary, TrialRecord, best, decides, feasible, standing, worth_another
from tuner.rows import environment_row, study_row, trial_row, workload_row
from tuner.tables import SCHEMA_VERSION, Base, Meta, StudyRow, TrialRow

__all__ = [
    "Lease",
    "Records",
    "Role",
    "StudyRecord",
    "StudySummary",
    "TrialRecord",
    "best",
    "decides",
    "feasible",
    "standing",
    "worth_another",
]
T = TypeVar("T")


class Records:
    """Reads and writes our tables.

    Args:
        engine: of the database that also holds Optuna's tables.
        retry: calls a transaction, again where the database is locked (`Storage.retry`).

    Raises:
        WrongInput: the tables were made by a newer version.
    """

    def __init__(self, engine: Engine, retry: Callable[[Callable[[], object]], object] | None = None) -> None:
        self.engine = engine
        self._retry = retry
        self._has_all_columns = False
        self._do(self._prepare)

    def add(self, record: TrialRecord) -> None:
        """Keep `record`, in one transaction; one that is there already is left as it is."""

        def write() -> None:
            if not self._has_all_columns:
                self._add_columns()
            with Session(self.engine) as session, session.begin():
                known = session.scalar(select(TrialRow.id).where(TrialRow.uuid == record.uuid))
                if known is None:
                    session.add(trial_row(record))

        self._do(write)

    def for_key(self, key: str) -> list[TrialRecord]:
        """Return the records of a workload, card and versions, in the order in which they were written."""
        return self._records(select(TrialRow.json).where(TrialRow.key == key))

    def for_study(self, name: str) -> list[TrialRecord]:
        """Return the records that were launched by a study, in the order in which they were written."""
        return self._records(select(TrialRow.json).where(TrialRow.study == name))

    def add_study(self, study: StudyRecord) -> None:
        """Keep `study` and mark it as the latest; where it is there, its first creation time stays."""

        def write() -> None:
            with Session(self.engine) as session, session.begin():
                known = session.get(StudyRow, study.name)
                first = study if known is None else study.model_copy(update={"created_at": known.created_at})
                environment = session.merge(environment_row(study.environment))
                session.merge(workload_row(study.workload))
                session.flush()
                session.merge(study_row(first, environment.digest))

        self._do(write)

    def study(self, name: str) -> StudyRecord | None:
        """Return the study of that name; None: there is none."""
        return self._study(select(StudyRow.json).where(StudyRow.name == name))

    def latest_study(self) -> StudyRecord | None:
        """Return the study that was searched last; None: there is none."""
        return self._study(select(StudyRow.json).order_by(StudyRow.used_at.desc()).limit(1))

    def studies(self) -> list[StudySummary]:
        """Return all studies by creation time, with the number of launches of each outcome."""
        return self._do(self._read_studies)

    def acquire_lease(self, study: str) -> Lease:
        """Take the right to run `study`; MachineError where a live process has it."""
        return self._do(lambda: lease.acquire(self.engine, study))

    def beat(self, held: Lease) -> None:
        """Give a sign of life, at least once a minute while a search runs."""
        self._do(lambda: lease.beat(self.engine, held))

    def release(self, held: Lease) -> None:
        """Give a lease back."""
        self._do(lambda: lease.release(self.engine, held))

    def lease_holder(self, study: str) -> Lease | None:
        """Return the live lease on `study`; None: nobody runs it."""
        held = self._do(lambda: lease.holder(self.engine, study))
        return held if held is not None and held.is_live() else None

    def _do(self, action: Callable[[], T]) -> T:
        if self._retry is None:
            return action()
        found: list[T] = []
        self._retry(lambda: found.append(action()))
        return found[0]

    def _records(self, query: Select[str]) -> list[TrialRecord]:
        def read() -> list[str]:
            with Session(self.engine) as session:
                return list(session.scalars(query.order_by(TrialRow.id)))

        return [TrialRecord.model_validate_json(text) for text in self._do(read)]

    def _study(self, query: Select[str]) -> StudyRecord | None:
        def read() -> str | None:
            with Session(self.engine) as session:
                return session.scalars(query).first()

        text = self._do(read)
        return None if text is None else StudyRecord.model_validate_json(text)

    def _read_studies(self) -> list[StudySummary]:
        counts: dict[str, dict[Outcome, int]] = {}
        with Session(self.engine) as session:
            grouped = select(TrialRow.study, TrialRow.outcome, func.count()).group_by(TrialRow.study, TrialRow.outcome)
            # A twin test is no launch of its strategy, and what one forbids was not launched: it took no time at all.
            grouped = grouped.where(TrialRow.role != "twin", TrialRow.seconds != 0)
            for study, outcome, count in session.execute(grouped):
                counts.setdefault(study, {})[Outcome(outcome)] = count
            rows = session.scalars(select(StudyRow).order_by(StudyRow.created_at, StudyRow.name)).all()
            found = [(StudyRecord.model_validate_json(row.json), row.used_at) for row in rows]
        return [StudySummary(study=s, used_at=used, counts=counts.get(s.name, {})) for s, used in found]

    def _prepare(self) -> None:
        # Looked at before anything is made: nothing is written beside tables of a newer version.
        if inspect(self.engine).has_table(Meta.__tablename__):
            self._check_version()
        try:
            Base.metadata.create_all(self.engine)
        except DBAPIError as error:
            # Two processes may make the tables of a new database at the same time.
            if "already exists" not in str(error.orig):
                raise
            Base.metadata.create_all(self.engine)
        with Session(self.engine) as session, session.begin():
            if session.get(Meta, "schema_version") is None:
                session.add(Meta(name="schema_version", value=str(SCHEMA_VERSION)))

    def _add_columns(self) -> None:
        """Add the columns that a database of an earlier version lacks; its rows have null in them.

        Before the first record is written and not on opening: a report leaves the file as it is.
        """
        for table in Base.metadata.sorted_tables:
            known = {column["name"] for column in inspect(self.engine).get_columns(table.name)}
            for column in table.columns:
                if column.name in known:
                    continue
                added = CreateColumn(column).compile(dialect=self.engine.dialect)
                try:
                    with self.engine.begin() as connection:
                        connection.execute(text(f"ALTER TABLE {table.name} ADD COLUMN {added}"))
                except DBAPIError as error:
                    # Another process may open the same database at the same time.
                    if not any(words in str(error.orig) for words in ("already exists", "duplicate column")):
                        raise
        self._has_all_columns = True

    def _check_version(self) -> None:
        with Session(self.engine) as session:
            found = session.get(Meta, "schema_version")
        if found is not None and int(found.value) > SCHEMA_VERSION:
            rule = f"its tables have version {found.value}, and this version of the tuner knows {SCHEMA_VERSION}"
            raise WrongInput("storage", rule, hint="a newer tuner made it: update this one, or name another --storage")
