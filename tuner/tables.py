"""Our own tables, as SQLAlchemy models: the columns are for SQL, the JSON beside them keeps all.

None of them refers to a table of Optuna's: there a plain foreign key makes `optuna.delete_study`
silently do nothing on PostgreSQL, and records outlive studies anyway.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, ForeignKey, Index, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

SCHEMA_VERSION = 1
"""Raised when a column changes its meaning, or goes. One that comes is nullable, and `Records` adds it."""


class Base(DeclarativeBase):
    """Base of all tables of ours."""

    type_annotation_map = {str: Text}  # noqa: RUF012 (SQLAlchemy's own way to say it)


class Meta(Base):
    """Facts about the tables themselves."""

    __tablename__ = "tuner_meta"
    name: Mapped[str] = mapped_column(primary_key=True)
    """``schema_version``."""
    value: Mapped[str]


class WorkloadRow(Base):
    """What was trained."""

    __tablename__ = "tuner_workload"
    digest: Mapped[str] = mapped_column(primary_key=True)
    """`Workload.digest`."""
    model: Mapped[str]
    adapter: Mapped[str]
    precision: Mapped[str]
    max_length: Mapped[int]
    batch_size: Mapped[int]
    description: Mapped[str]
    json: Mapped[str]


class EnvironmentRow(Base):
    """Where it was measured."""

    __tablename__ = "tuner_environment"
    digest: Mapped[str] = mapped_column(primary_key=True)
    """SHA-256 of the JSON."""
    device_name: Mapped[str]
    device_type: Mapped[str]
    device_total_bytes: Mapped[int] = mapped_column(BigInteger)
    driver: Mapped[str | None]
    torch: Mapped[str | None]
    json: Mapped[str]


class StudyRow(Base):
    """A key and a budget."""

    __tablename__ = "tuner_study"
    name: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(index=True)
    budget_bytes: Mapped[int] = mapped_column(BigInteger)
    limit_bytes: Mapped[int] = mapped_column(BigInteger)
    workload_digest: Mapped[str] = mapped_column(ForeignKey("tuner_workload.digest"))
    environment_digest: Mapped[str] = mapped_column(ForeignKey("tuner_environment.digest"))
    created_at: Mapped[float]
    used_at: Mapped[float]
    """Unix time at which a search last opened it."""
    json: Mapped[str]


class TrialRow(Base):
    """One launch of one strategy. `study` is a name, not a reference: records outlive studies."""

    __tablename__ = "tuner_trial"
    id: Mapped[int] = mapped_column(primary_key=True)
    """The order in which records were written."""
    uuid: Mapped[str] = mapped_column(unique=True)
    key: Mapped[str] = mapped_column(index=True)
    study: Mapped[str]
    number: Mapped[int | None]
    role: Mapped[str]
    source: Mapped[str]
    strategy: Mapped[str]
    """JSON: a value for each knob."""
    fingerprint: Mapped[str]
    outcome: Mapped[str]
    kind: Mapped[str | None]
    phase: Mapped[str | None]
    flags: Mapped[str]
    """With blanks between."""
    detail: Mapped[str]
    tokens_per_s: Mapped[float | None]
    step_seconds: Mapped[float | None]
    peak_device_bytes: Mapped[int | None] = mapped_column(BigInteger)
    peak_reserved_bytes: Mapped[int | None] = mapped_column(BigInteger)
    peak_allocated_bytes: Mapped[int | None] = mapped_column(BigInteger)
    compile_seconds: Mapped[float | None]
    budget_bytes: Mapped[int] = mapped_column(BigInteger)
    limit_bytes: Mapped[int] = mapped_column(BigInteger)
    cap_bytes: Mapped[int | None] = mapped_column(BigInteger)
    needed_bytes: Mapped[int | None] = mapped_column(BigInteger)
    seed: Mapped[int] = mapped_column(BigInteger)
    started_at: Mapped[float]
    """Unix time."""
    seconds: Mapped[float]
    json: Mapped[str]
    """The whole TrialRecord, its TrialResult in it."""

    phases: Mapped[list[PhaseRow]] = relationship(passive_deletes=True)
    failure: Mapped[FailureRow | None] = relationship(passive_deletes=True)

    __table_args__ = (Index("tuner_trial_study_number", "study", "number"),)


class PhaseRow(Base):
    """The peaks of one phase of one trial."""

    __tablename__ = "tuner_phase"
    trial_uuid: Mapped[str] = mapped_column(ForeignKey("tuner_trial.uuid", ondelete="CASCADE"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    """The order of the phases, from 0."""
    phase: Mapped[str]
    seconds: Mapped[float]
    allocated_bytes: Mapped[int | None] = mapped_column(BigInteger)
    reserved_bytes: Mapped[int | None] = mapped_column(BigInteger)
    device_bytes: Mapped[int | None] = mapped_column(BigInteger)
    steps: Mapped[int]
    retries: Mapped[int]
    """Times that the allocator had to flush and try again."""
    ooms: Mapped[int | None]
    """Out-of-memory errors that the allocator raised, caught ones included; null in rows from before."""
    graph_pool_bytes: Mapped[int | None] = mapped_column(BigInteger)
    """Reserved in the private pools of CUDA graphs at the phase's end."""


class FailureRow(Base):
    """Why a worker ended early, as it saw it itself."""

    __tablename__ = "tuner_failure"
    trial_uuid: Mapped[str] = mapped_column(ForeignKey("tuner_trial.uuid", ondelete="CASCADE"), primary_key=True)
    failure_class: Mapped[str]
    kind: Mapped[str | None]
    phase: Mapped[str]
    step: Mapped[int | None]
    type: Mapped[str]
    """The exception's."""
    detail: Mapped[str]
    needed_bytes: Mapped[int | None] = mapped_column(BigInteger)
    traceback: Mapped[str]


class LeaseRow(Base):
    """Who runs a study now."""

    __tablename__ = "tuner_lease"
    study: Mapped[str] = mapped_column(primary_key=True)
    token: Mapped[str]
    """Of this one lease."""
    host: Mapped[str]
    pid: Mapped[int]
    boot_id: Mapped[str]
    process_started: Mapped[int] = mapped_column(BigInteger)
    """Clock ticks after boot: tells a process from a later one with the same pid."""
    beat_at: Mapped[float]
    """Unix time of the last sign of life; counts for a holder that cannot be looked at from here."""
