"""What /proc says about processes: memory, family, markers in the environment.

Every function takes a process that may be gone already: then it returns 0, None or nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """A process as ``/proc/PID/stat`` shows it. `pid` and `start_ticks` together never repeat."""

    pid: int
    state: str
    """``Z``: dead, not reaped yet."""
    parent: int
    group: int
    start_ticks: int
    """Clock ticks since boot."""

    @property
    def alive(self) -> bool:
        """Is it more than an entry that waits to be reaped?"""
        return self.state not in "ZX"


def read_stat(pid: int) -> ProcessStat | None:
    """Return what the kernel says about `pid`; None: there is no such process."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The name is in parentheses and may itself hold spaces and parentheses.
    fields = text[text.rindex(")") + 2 :].split()
    return ProcessStat(pid, fields[0], int(fields[1]), int(fields[2]), int(fields[19]))


def resident_bytes(pid: int) -> int:
    """Return the resident memory of `pid`; 0 when it is gone."""
    try:
        fields = (_PROC / str(pid) / "statm").read_text().split()
    except OSError:
        return 0
    return int(fields[1]) * PAGE_BYTES


def proportional_bytes(pid: int) -> int:
    """Return the resident memory of `pid` with what it shares divided among those that share it (PSS); 0 when gone.

    Where the kernel does not tell it is `resident_bytes`.
    """
    try:
        text = (_PROC / str(pid) / "smaps_rollup").read_text()
    except OSError:
        return resident_bytes(pid)
    found = re.search(r"^Pss:\s*(\d+) kB$", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else resident_bytes(pid)


def descendants(pid: int, *, surely: bool = False) -> list[int]:
    """Return the children of `pid`, their children and so on, parents first.

    `surely`: look at every process of the machine. The kernel's own list of children is quicker,
    and may leave some out while others come and go.
    """
    children = _listed_children if _kernel_lists_children() and not surely else _scan_children()
    found = children(pid)
    for child in found:
        found += children(child)
    return found


def _kernel_lists_children() -> bool:
    # Not every kernel does (CONFIG_PROC_CHILDREN); sandboxes that imitate one may not.
    return (_PROC / "self" / "task" / str(os.getpid()) / "children").exists()


def _listed_children(pid: int) -> list[int]:
    found: list[int] = []
    for thread in _names(_PROC / str(pid) / "task"):
        try:
            found += map(int, (_PROC / str(pid) / "task" / thread / "children").read_text().split())
        except OSError:
            continue
    return found


def _scan_children() -> Callable[[int], list[int]]:
    children: dict[int, list[int]] = {}
    for pid in all_pids():
        stat = read_stat(pid)
        if stat is not None:
            children.setdefault(stat.parent, []).append(pid)
    return lambda pid: list(children.get(pid, []))


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def read_environment(pid: int) -> dict[str, str]:
    """Return the environment that `pid` was started with; empty where it may not be read."""
    try:
        text = (_PROC / str(pid) / "environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(item.split("=", 1) for item in text.split("\0") if "=" in item)


def all_pids() -> list[int]:
    """Return every process of this machine that /proc shows."""
    return [int(name) for name in os.listdir(_PROC) if name.isdigit()]


def describe(pid: int) -> str:
    """Return number and command line, for a person."""
    try:
        words = (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        words = []
    command = " ".join(words).strip() or "(no command line)"
    return f"{pid} {command[:100]}"


def pid_namespace() -> int:
    """Return the number of the namespace in which we count processes; a container has its own.

    0 where the kernel does not tell.
    """
    try:
        return (_PROC / "self" / "ns" / "pid").stat().st_ino
    except OSError:
        return 0


def identity(pid: int) -> str:
    """Return ``PID:START:NAMESPACE``, which names one process of this boot for ever; START 0 when it is gone."""
    stat = read_stat(pid)
    return f"{pid}:{stat.start_ticks if stat else 0}:{pid_namespace()}"


def is_ours_to_judge(process_identity: str) -> bool:
    """Was `identity` made in our own namespace? Another's numbers mean other processes here."""
    return process_identity.split(":")[2:] == [str(pid_namespace())]


def is_alive(process_identity: str) -> bool:
    """Does the process that `identity` named in this namespace still live?"""
    pid = int(process_identity.partition(":")[0])
    stat = read_stat(pid)
    return stat is not None and stat.alive and identity(pid) == process_identity
