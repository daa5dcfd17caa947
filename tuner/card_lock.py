"""One search a card: a file lock by the card's UUID."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tuner.errors import MachineError


@contextmanager
def card_lock(uuid: str, folder: Path | None = None) -> Iterator[None]:
    """Hold the card for one search of this user; gone with the process, however that ends.

    `folder`: where the lock files lie; a folder of the user in /tmp unless said.

    Raises:
        MachineError: another search holds the card.
    """
    path = _lock_folder(folder) / f"{uuid.replace('/', '_')}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _take(descriptor, uuid)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, uuid: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        raise MachineError(f"another search holds the card {uuid}: process {holder}") from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)


def _lock_folder(folder: Path | None) -> Path:
    # Not /run/user: it goes when the last session of the user ends, under a search that goes on.
    chosen = folder or Path("/tmp") / f"compile-tuner-{os.getuid()}"
    chosen.mkdir(mode=0o700, parents=True, exist_ok=True)
    if chosen.stat(follow_symlinks=False).st_uid != os.getuid():
        raise MachineError(f"{chosen} belongs to somebody else: locks of cards cannot lie there")
    return chosen
