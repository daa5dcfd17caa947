"""What the parent can see of the machine by itself, without torch and without touching the card."""

from __future__ import annotations

import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from tuner.machine import DISTRIBUTIONS, CheckItem
from tuner.units import GIB, format_gib

LEAST_FREE_BYTES = 2 * GIB
"""What the compile cache and the logs of one study may need."""
_COMPILERS = ("g++", "clang++", "c++")


def parent_items(
    device: str, cache_dir: Path, environment: Mapping[str, str], driver: str | None
) -> tuple[CheckItem, ...]:
    """What can be told without torch."""
    items = [python_item(), headers_item(), compiler_item(environment), cache_item(cache_dir), disk_item(cache_dir)]
    if device != "cpu":
        advice = "" if driver else "install NVIDIA's driver, or run the container with --gpus all"
        items.insert(3, CheckItem(name="driver", ok=driver is not None, value=driver or "none found", advice=advice))
    return tuple(items)


def python_item() -> CheckItem:
    """The interpreter that workers will run in."""
    return CheckItem(name="python", ok=True, value=f"{platform.python_version()} ({sys.executable})")


def headers_item() -> CheckItem:
    """Inductor's C++ and Triton's launcher both include Python.h."""
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if header.exists():
        return CheckItem(name="headers", ok=True, value=str(header))
    advice = "install Python's headers (Debian, Ubuntu: apt-get install python3-dev)"
    return CheckItem(name="headers", ok=False, value=f"{header} is missing", advice=advice)


def compiler_item(environment: Mapping[str, str]) -> CheckItem:
    """The C++ compiler that inductor will find: CXX, else the usual names."""
    found = compiler(environment)
    if found is not None and _answers(found, environment):
        return CheckItem(name="compiler", ok=True, value=found)
    named = environment.get("CXX")
    value = f"CXX={named} does not work" if named else "no C++ compiler found"
    advice = "install a C++ compiler (Debian, Ubuntu: apt-get install g++)"
    return CheckItem(name="compiler", ok=False, value=value, advice=f"unset CXX, or {advice}" if named else advice)


def compiler(environment: Mapping[str, str]) -> str | None:
    """The path of the C++ compiler; None: there is none."""
    path = environment.get("PATH")
    if environment.get("CXX"):
        words = shlex.split(environment["CXX"])
        return shutil.which(words[0], path=path) if words else None
    return next((found for name in _COMPILERS if (found := shutil.which(name, path=path))), None)


def cache_item(cache_dir: Path) -> CheckItem:
    """The folder is made, and a file in it, as a worker would."""
    advice = "name another folder with --storage, or make this one writable for the user who runs tuner"
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache_dir):
            pass
    except OSError as error:
        return CheckItem(name="cache", ok=False, value=f"{cache_dir}: {error.strerror}", advice=advice)
    return CheckItem(name="cache", ok=True, value=f"{cache_dir} is writable")


def disk_item(folder: Path) -> CheckItem:
    """Room for the compile cache and the logs."""
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    value = f"{format_gib(free)} free at {existing}"
    advice = f"`tuner clean --yes` removes caches and logs; a study wants {format_gib(LEAST_FREE_BYTES)}"
    return CheckItem(
        name="disk", ok=free >= LEAST_FREE_BYTES, value=value, advice="" if free >= LEAST_FREE_BYTES else advice
    )


def versions() -> dict[str, str]:
    """Versions by distribution, without importing any."""
    found: dict[str, str] = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def nvidia_driver() -> str | None:
    """The version of NVIDIA's driver; None where there is none."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        return str(pynvml.nvmlSystemGetDriverVersion())
    finally:
        pynvml.nvmlShutdown()


def _answers(path: str, environment: Mapping[str, str]) -> bool:
    try:
        done = subprocess.run([path, "--version"], env=dict(environment), capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
