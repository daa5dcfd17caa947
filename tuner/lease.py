"""Who runs a study: at most one live process at a time."""

from __future__ import annotations

import os
import socket
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from tuner import processes
from tuner.errors import MachineError
from tuner.tables import LeaseRow

SILENCE_SECONDS = 900.0
"""A holder on another host counts as dead after so long without a beat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to run a study, and to tell its trials."""

    study: str
    token: str
    host: str
    pid: int
    boot_id: str
    """Of the kernel, with the number of the pid namespace behind a colon."""
    process_started: int
    """Clock ticks after boot at which the process began."""
    beat_at: float
    """Unix time of the last sign of life."""

    def is_live(self) -> bool:
        """Does the holder still run?

        A process on this host is looked at; one elsewhere, or in another container that goes by
        the same host name, is judged by its last beat.
        """
        here = this_process("")
        if self.host != here.host or _namespace(self.boot_id) != _namespace(here.boot_id):
            return time.time() - self.beat_at < SILENCE_SECONDS
        return self.boot_id == here.boot_id and process_started(self.pid) == self.process_started


def this_process(study: str) -> Lease:
    """Return the lease that this process would hold."""
    pid = os.getpid()
    return Lease(
        study=study,
        token=uuid.uuid4().hex,
        host=socket.gethostname(),
        pid=pid,
        boot_id=f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}:{processes.pid_namespace()}",
        process_started=process_started(pid) or 0,
        beat_at=time.time(),
    )


def _namespace(boot_id: str) -> str:
    return boot_id.partition(":")[2]


def process_started(pid: int) -> int | None:
    """Return the clock ticks after boot at which `pid` began; None: there is no such process, or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name is in brackets and may hold blanks and brackets itself; state is field 3, start time field 22.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def holder(engine: Engine, study: str) -> Lease | None:
    """Return the lease on `study`, live or dead; None: nobody has one."""
    with engine.connect() as connection:
        row = connection.execute(select(LeaseRow.__table__).where(LeaseRow.study == study)).mappings().first()
    return None if row is None else Lease(**row)


def acquire(engine: Engine, study: str) -> Lease:
    """Take the lease on `study`, from a dead holder too.

    Raises:
        MachineError: a live process holds it.
    """
    wanted = this_process(study)
    while (held := holder(engine, study)) is None or not held.is_live():
        if _take(engine, wanted, held):
            return wanted
    raise MachineError(f"study {study!r} is being searched by process {held.pid} on {held.host}")


def _take(engine: Engine, wanted: Lease, held: Lease | None) -> bool:
    values = {name: getattr(wanted, name) for name in wanted.__slots__}
    # Compare and swap: of two that find the same dead lease one wins.
    try:
        with engine.begin() as connection:
            if held is None:
                connection.execute(insert(LeaseRow).values(values))
                return True
            mine = (LeaseRow.study == held.study, LeaseRow.token == held.token)
            return connection.execute(update(LeaseRow).where(*mine).values(values)).rowcount == 1
    except IntegrityError:
        return False


def beat(engine: Engine, lease: Lease) -> None:
    """Give a sign of life.

    Raises:
        MachineError: another process has taken the lease.
    """
    mine = (LeaseRow.study == lease.study, LeaseRow.token == lease.token)
    with engine.begin() as connection:
        if connection.execute(update(LeaseRow).where(*mine).values(beat_at=time.time())).rowcount == 0:
            raise MachineError(f"study {lease.study!r} was taken over by another process")


def release(engine: Engine, lease: Lease) -> None:
    """Give the lease back; nothing happens where another process has taken it."""
    with engine.begin() as connection:
        connection.execute(delete(LeaseRow).where(LeaseRow.study == lease.study, LeaseRow.token == lease.token))
