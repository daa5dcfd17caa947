"""A throwaway PostgreSQL server for the tests that need a real one.

Import the fixture `postgres_url` from here. It is skipped only where the server's programs are missing.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import create_engine, text


def _programs() -> Path | None:
    """The folder of initdb and postgres: Debian keeps them out of PATH."""
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if (folder / "initdb").exists():
            return folder
    found = shutil.which("initdb")
    return Path(found).parent if found else None


def _unprivileged() -> dict[str, Any]:
    """The server refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    account = pwd.getpwnam("nobody")
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def _run(folder: Path, *command: str) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        env={"LC_ALL": "C", "PATH": os.defpath},
        **_unprivileged(),
    )
    assert done.returncode == 0, f"{command[0]}: {done.stdout}{done.stderr}"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The socket folder of a running server with the role ``tuner``."""
    programs = _programs()
    if programs is None:
        pytest.skip("PostgreSQL's initdb is not installed")
    # Short, since a socket's path has at most 107 bytes, and not below pytest's folder, which is closed to others.
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    owner = _unprivileged()
    if owner:
        os.chown(folder, owner["user"], owner["group"])
    data = str(folder / "data")
    control = [str(programs / "pg_ctl"), "-D", data, "-w", "-t", "50"]
    try:
        _run(folder, str(programs / "initdb"), "-D", data, "-U", "tuner", "-A", "trust", "-N", "-E", "UTF8")
        _run(
            folder, *control, "-l", str(folder / "log"), "-o", f"-k {folder} -c listen_addresses= -c fsync=off", "start"
        )
        try:
            yield str(folder)
        finally:
            _run(folder, *control, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres_url(postgres_server: str) -> str:
    """The URL of a new, empty database."""
    name = f"t{uuid.uuid4().hex}"
    where = f"host={quote(postgres_server, safe='')}"
    admin = create_engine(f"postgresql://tuner@/postgres?{where}", isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    admin.dispose()
    return f"postgresql://tuner@/{name}?{where}"
