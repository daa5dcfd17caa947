"""What the host gives: memory, cores, the processor's name. Containers' limits count."""

from __future__ import annotations

import math
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/")


def processor_name(root: Path = _ROOT) -> str:
    """Return the processor's name as /proc/cpuinfo has it; the architecture where it has none."""
    found = re.search(r"^model name\s*:\s*(.+)$", _read(root / "proc/cpuinfo") or "", re.MULTILINE)
    return found[1].strip() if found else f"{platform.machine()} processor"


def available_bytes(root: Path = _ROOT) -> int:
    """Return T on a CPU: the smaller of the container's limit and what is available now."""
    return min([_meminfo("MemAvailable", root), *_memory_limits(root)])


def total_bytes(root: Path = _ROOT) -> int:
    """Return what there is in all: the smaller of the container's limit and the machine's memory."""
    return min([_meminfo("MemTotal", root), *_memory_limits(root)])


def worker_threads(root: Path = _ROOT) -> int:
    """Return the threads that a worker gets: all cores that we may use but one, and at least one."""
    cores = min([len(os.sched_getaffinity(0)), *map(math.ceil, _core_limits(root))])
    return max(1, cores - 1)


def _meminfo(field: str, root: Path) -> int:
    found = re.search(rf"^{field}:\s*(\d+) kB$", (root / "proc/meminfo").read_text(), re.MULTILINE)
    if found is None:
        raise OSError(f"/proc/meminfo has no {field}")
    return int(found[1]) * 1024


def _memory_limits(root: Path) -> Iterator[int]:
    for version, folder in _groups("memory", root):
        text = _read(folder / ("memory.max" if version == 2 else "memory.limit_in_bytes"))
        if text is not None and text.isdigit():  # not "max"
            yield int(text)


def _core_limits(root: Path) -> Iterator[float]:
    for version, folder in _groups("cpu", root):
        if version == 2:
            quota, _, period = (_read(folder / "cpu.max") or "max").partition(" ")
        else:
            quota, period = (_read(folder / f"cpu.cfs_{name}_us") or "-1" for name in ("quota", "period"))
        if quota.isdigit() and period.isdigit():  # not "max", not -1
            yield int(quota) / int(period)


def _groups(controller: str, root: Path) -> Iterator[tuple[int, Path]]:
    """Yield version and folder of our control group and of those above it, which limit it too."""
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        version = 2 if controllers == "" else 1
        if version == 1 and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / ("" if version == 2 else controllers)
        group = Path(path.lstrip("/"))
        yield from ((version, mount / part) for part in (group, *group.parents))


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None
