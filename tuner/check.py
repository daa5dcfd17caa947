"""Can this machine do the work? Looked at before a study, so that a missing compiler is no trial's outcome.

What needs torch is asked of a child (`tuner.worker.check`); its answer is kept for an unchanged environment.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import ValidationError

from tuner.checklist import compiler, nvidia_driver, parent_items, versions
from tuner.errors import Interrupted, MachineError
from tuner.inherited import handed_on
from tuner.machine import CheckItem, CheckResult, ChildReport, MachineFacts
from tuner.stopping import never
from tuner.workload import Frozen

CHILD_SECONDS = 300.0
"""A cold tiny compile takes 20 s on two slow cores, importing torch from a cold disk up to a minute."""
_LOOK_SECONDS = 0.1
"""Between two looks whether the end was asked for."""


def check_cache(studies: Path) -> Path:
    """Where the check compiles, below the folder that holds the studies."""
    return studies / "cache" / "check"


def check_file(studies: Path) -> Path:
    """Where the child's answer is kept."""
    return studies / "check.json"


class _Kept(Frozen):
    """The file that keeps the child's answer."""

    schema_version: int = 1
    fingerprint: str
    child: ChildReport


def run_check(
    device: str,
    cache_dir: Path,
    environment: Mapping[str, str],
    keep: Path | None,
    *,
    fresh: bool = False,
    child_seconds: float = CHILD_SECONDS,
    stopped: Callable[[], bool] = never,
) -> CheckResult:
    """Look at everything that a study on `device` needs.

    Args:
        device: ``cuda:0`` or ``cpu``.
        cache_dir: where compiled code will lie (TORCHINDUCTOR_CACHE_DIR).
        environment: what workers inherit; that which is not handed on to them, the check does not see either.
        keep: the file in which the child's answer is kept; None: nowhere.
        fresh: ask the child even where its answer is kept.
        stopped: has the user, or the system, asked for the end?

    Raises:
        Interrupted: so it is.
        MachineError: the child could not be started at all.
    """
    environment = handed_on(environment)
    driver = nvidia_driver()
    fingerprint = environment_fingerprint(device, cache_dir, environment, driver)
    child = None if fresh or keep is None else _read_kept(keep, fingerprint)
    kept = child is not None
    if child is None:
        child = ask_child(device, cache_dir, environment, child_seconds, stopped)
        # A fault is asked about again: what a person does against it need not show in the fingerprint.
        if keep is not None and child.compile_seconds is not None:
            _write_kept(keep, _Kept(fingerprint=fingerprint, child=child))
    items = (*parent_items(device, cache_dir, environment, driver), *child.items)
    return conclude(device, driver, items, child, kept)


def conclude(
    device: str, driver: str | None, items: tuple[CheckItem, ...], child: ChildReport, kept: bool
) -> CheckResult:
    """Put both halves together."""
    passed = {item.name for item in child.items if item.ok}
    failed = {item.name for item in child.items if not item.ok}
    can_run = "device" in passed and "dynamo" not in failed
    can_compile = can_run and child.compile_seconds is not None
    facts = MachineFacts(
        **child.facts.model_dump(), device=device, driver=driver, python=platform.python_version(), versions=versions()
    )
    return CheckResult(
        items=items,
        can_run=can_run,
        can_compile=can_compile,
        reason="" if can_compile else reason(items, child),
        facts=facts,
        kept=kept,
    )


def reason(items: tuple[CheckItem, ...], child: ChildReport) -> str:
    """One sentence: why nothing can be compiled, and what helps."""
    faults = {item.name: item for item in items if not item.ok}
    blamed = faults.get("torch") or faults.get("device") or faults.get("dynamo") or faults.get("compile")
    if blamed is None:
        return f"the check's child ended in stage {child.stage!r}"
    # What the parent found missing is plainer advice than the exception's.
    plain = [faults[name].advice for name in ("compiler", "headers", "cache") if name in faults]
    advice = plain or [blamed.advice]
    return f"{blamed.value} ({'; '.join(part for part in advice if part)})"


def environment_fingerprint(device: str, cache_dir: Path, environment: Mapping[str, str], driver: str | None) -> str:
    """A hash of all that the child's answer depends on."""
    names = ("CXX", "CC", "CUDA_VISIBLE_DEVICES", "TRITON_CACHE_DIR", "LD_LIBRARY_PATH")
    parts = {
        "versions": versions(),
        "python": [sys.version, sys.executable],
        "compiler": compiler(environment),
        "environment": {name: environment.get(name) for name in names},
        "device": device,
        "cache": str(cache_dir.absolute()),
        "driver": driver,
        "user": os.getuid(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def ask_child(
    device: str,
    cache_dir: Path,
    environment: Mapping[str, str],
    seconds: float,
    stopped: Callable[[], bool] = never,
) -> ChildReport:
    """Run the child and read what it said, however it ended.

    Raises:
        MachineError: it said nothing at all.
        Interrupted: the end was asked for.
    """
    with tempfile.TemporaryDirectory(prefix="tuner-check-") as folder:
        out, log = Path(folder, "out.json"), Path(folder, "log")
        command = [sys.executable, "-m", "tuner.worker.check", str(out), device]
        ending = _run(command, dict(environment) | _child_environment(cache_dir), log, seconds, stopped)
        report = _read_report(out)
        if report is not None and report.stage == "done":
            return report
        said = log.read_text(errors="replace").strip().splitlines()[-1:]
    if report is None:
        raise MachineError(f"the check of the machine could not start: {' '.join([ending, *said])}")
    if any(not item.ok and item.name in ("torch", "device", "dynamo") for item in report.items):
        return report
    # It died, or hung, inside a stage: that stage is the fault.
    died = CheckItem(name=report.stage, ok=False, value=" ".join([f"the child {ending}", *said]))
    return report.model_copy(update={"items": (*report.items, died)})


def _child_environment(cache_dir: Path) -> dict[str, str]:
    # One compile thread: a pool of compilers for one small function costs more than it saves.
    return {"TORCHINDUCTOR_CACHE_DIR": str(cache_dir), "TORCHINDUCTOR_COMPILE_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def _run(
    command: list[str], environment: dict[str, str], log: Path, seconds: float, stopped: Callable[[], bool]
) -> str:
    """Run to the end, or kill the whole group; return how it ended."""
    with log.open("wb") as stream:
        child = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True
        )
        try:
            code = _wait(child, seconds, stopped)
        finally:
            _kill_group(child)
    if code is None:
        return f"took longer than {seconds:.0f} s"
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"


def _wait(child: subprocess.Popen[bytes], seconds: float, stopped: Callable[[], bool]) -> int | None:
    """Return the exit status; None: it takes too long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            return child.wait(timeout=_LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            # While signals are caught none of them interrupts a wait.
            if stopped():
                raise Interrupted("interrupted while the machine was checked: nothing was measured") from None
    return None


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    child.wait()


def _read_report(path: Path) -> ChildReport | None:
    try:
        return ChildReport.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _read_kept(path: Path, fingerprint: str) -> ChildReport | None:
    try:
        kept = _Kept.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
    return kept.child if kept.schema_version == 1 and kept.fingerprint == fingerprint else None


def _write_kept(path: Path, kept: _Kept) -> None:
    temporary = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(kept.model_dump_json(indent=1))
        os.replace(temporary, path)
    except OSError as error:
        raise MachineError(f"{path} cannot be written ({error.strerror})") from error
