"""What studies leave on the disk besides records: found, counted, removed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from tuner.errors import MachineError
from tuner.recovery import is_unrecorded
from tuner.units import format_gib
from tuner.workload import Frozen

KEPT = frozenset({"records"})
"""Folders beside the database that no search makes."""
SHARED = ("cache",)
"""Folders that several studies use."""


class Leftover(Frozen):
    """One file or folder that can be removed."""

    path: Path
    what: Literal["trial", "log", "cache"]
    size_bytes: int


def find(studies: Path, names: Collection[str], shared: bool, recorded: Collection[str]) -> list[Leftover]:
    """Return what the studies `names` left below `studies`, by path.

    Only folders with the name of a study of the database are looked into, so that nothing is
    found that a search did not make.

    Args:
        shared: also the caches that several studies use.
        recorded: the uuids of the records; a trial with a result that is in none is left out, since
            the next search makes a record of it.
    """
    folders = [studies / name for name in names if name not in KEPT]
    found = [leftover for folder in folders if _is_folder(folder) for leftover in _within(folder)]
    found = [one for one in found if one.what != "trial" or not is_unrecorded(one.path, recorded)]
    if shared:
        found += [_leftover(studies / name, "cache") for name in SHARED if _is_folder(studies / name)]
        found += [_leftover(log, "log") for log in studies.glob("*.log")]
    return sorted(found, key=lambda leftover: leftover.path)


def _within(folder: Path) -> Iterator[Leftover]:
    for path in folder.iterdir():
        if _is_folder(path):
            yield _leftover(path, "trial" if (path / "request.json").exists() else "cache")
        else:
            yield _leftover(path, "log")


def _leftover(path: Path, what: Literal["trial", "log", "cache"]) -> Leftover:
    return Leftover(path=path, what=what, size_bytes=size_bytes(path))


def _is_folder(path: Path) -> bool:
    # Never through a link: what it points at may be anything.
    return path.is_dir() and not path.is_symlink()


def size_bytes(path: Path) -> int:
    """Return the bytes of a file, or of all files below a folder; links count as themselves."""
    if not _is_folder(path):
        return path.lstat().st_size
    total = 0
    for folder, _, files in os.walk(path):
        for name in files:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
    return total


def describe(found: Sequence[Leftover], running: Iterable[str], removed: bool) -> list[str]:
    """Return one line for each thing, then the sum."""
    lines = [f"study {name} is being searched: left alone" for name in sorted(running)]
    lines += [f"{leftover.size_bytes:>15,} bytes  {leftover.what:<5}  {leftover.path}" for leftover in found]
    total = sum(leftover.size_bytes for leftover in found)
    said = f"{total:,} bytes ({format_gib(total)}) in {len(found)} files and folders"
    if not found:
        return [*lines, "Nothing to remove."]
    return [*lines, f"{said} removed." if removed else f"{said}; `tuner clean --yes` removes them. Records stay."]


def remove(found: Iterable[Leftover]) -> None:
    """Remove what was found.

    Raises:
        MachineError: something cannot be removed; what came before it is gone.
    """
    for leftover in found:
        try:
            if _is_folder(leftover.path):
                shutil.rmtree(leftover.path)
            else:
                leftover.path.unlink(missing_ok=True)
        except OSError as error:
            raise MachineError(f"{error.filename or leftover.path} cannot be removed ({error.strerror})") from error
