"""A checked device with a limit: where strategies of one workload can be measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from strategies.knob import COMPILE_OFF, Target
from tuner.budget import asked_bytes, budget_notes, given_bytes, limits_of, multiprocessors, precision_notes
from tuner.check import check_cache, check_file, run_check
from tuner.checklist import disk_item
from tuner.device import DeviceInfo
from tuner.environment import Environment
from tuner.errors import MachineError, WrongInput
from tuner.host import worker_threads
from tuner.inherited import left_out
from tuner.limits import Limits
from tuner.listener import Listener
from tuner.machine import CheckResult
from tuner.pick_device import pick_device
from tuner.record import StudyRecord
from tuner.records import Records
from tuner.space import Space
from tuner.spec import StudySpec, make_filter, make_target, make_workload
from tuner.stopping import never
from tuner.storage import DEFAULT_FILE, Storage, open_storage
from tuner.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A checked device with a limit: where strategies of one workload can be measured."""

    device: DeviceInfo
    check: CheckResult
    limits: Limits
    given_bytes: int
    """T of the device itself at the start, whatever the budget."""
    asked_bytes: int
    """The budget that the study is of; `limits` may have clamped it."""
    card: str | None
    """The card that the budget is of, by its name in `tuner.cards`; None: a size was given."""
    workload: Workload
    environment: Environment
    target: Target
    storage: Storage
    records: Records
    root: Path
    """The folder of studies."""
    notes: tuple[str, ...]

    @property
    def key(self) -> str:
        """The key of the records that are made here."""
        return self.environment.key(self.workload)


@contextmanager
def open_bench(
    spec: StudySpec,
    environment: Mapping[str, str],
    listener: Listener,
    workload: Workload | None = None,
    stopped: Callable[[], bool] = never,
) -> Iterator[Bench]:
    """Open the storage, check the machine and find the limit.

    Args:
        environment: what workers inherit.
        workload: instead of the spec's own.
        stopped: has the user, or the system, asked for the end?

    Raises:
        Interrupted: so it is.
        MachineError: the machine cannot do it.
        WrongInput: the spec cannot be used here.
    """
    device = pick_device(spec.device, environment.get("CUDA_VISIBLE_DEVICES"))
    assumed: list[str] = []
    if workload is None:
        workload, assumed = make_workload(spec, device.type)
    check_input(spec, workload, device)
    with ExitStack() as stack:
        storage = open_storage(spec.storage, Path.cwd(), stopped=stopped)
        stack.callback(storage.close)
        root = storage.path.parent if storage.path is not None else Path.cwd() / DEFAULT_FILE.parent
        check = _checked(device, root, environment, listener, stopped)
        device = device.told(total_bytes=check.facts.cuda_total_bytes, multiprocessors=check.facts.multiprocessors)
        given = given_bytes(device)
        found = limits_of(spec, device, given)
        notes = [*storage.notes, *([f"assumed: {', '.join(assumed)}"] if assumed else [])]
        if names := left_out(environment):
            notes.append(f"not handed on to trials, as it would change what is measured: {', '.join(names)}")
        notes += [*budget_notes(spec, device, found), *precision_notes(spec, workload.precision)]
        made = Environment(
            device_name=device.name,
            device_type=device.type,
            device_total_bytes=device.total_bytes,
            driver=device.driver,
            versions=check.facts.versions,
            threads=worker_threads() if device.type == "cpu" else None,
        )
        yield Bench(
            device=device,
            check=check,
            limits=found,
            given_bytes=given,
            asked_bytes=asked_bytes(spec, device),
            card=spec.card,
            workload=workload,
            environment=made,
            target=make_target(workload, device.type, found.emulated, multiprocessors(spec, device)),
            storage=storage,
            records=Records(storage.engine, storage.retry),
            root=root,
            notes=tuple(notes),
        )


def check_input(spec: StudySpec, workload: Workload, device: DeviceInfo) -> None:
    """Look at all that can be told before anything is written and the machine is checked.

    Raises:
        WrongInput: the budget is nothing or more than the device has, or a filter names what is not there.
        NothingFits: the margin alone takes the budget.
    """
    if spec.budget_bytes is not None or spec.card is not None:
        # NVML's total is larger than CUDA's: what is too much for it is too much.
        limits_of(spec, device, device.total_bytes)
    target = make_target(workload, device.type, False, multiprocessors(spec, device))
    allowed, _ = make_filter(spec, target)
    require_some(Space(target, allowed))


def require_some(space: Space) -> None:
    """Raise where the filters leave nothing.

    Raises:
        WrongInput: so it is.
    """
    if len(space) == 0:
        raise WrongInput("fix, knob", "leave no strategy that can work here (`tuner knobs` says why)")


def _checked(
    device: DeviceInfo, root: Path, environment: Mapping[str, str], listener: Listener, stopped: Callable[[], bool]
) -> CheckResult:
    inherited = {**environment, "CUDA_VISIBLE_DEVICES": device.uuid or ""}
    name = "cpu" if device.type == "cpu" else "cuda:0"
    disk = disk_item(root)
    if not disk.ok:
        raise MachineError(f"disk: {disk.value}; {disk.advice}")
    if not check_file(root).exists():
        listener.message("checking the machine with a tiny compile; it takes half a minute, the first time only")
    result = run_check(name, check_cache(root), inherited, check_file(root), stopped=stopped)
    if not result.can_run:
        raise MachineError(f"this machine cannot train: {result.reason} (tuner doctor says more)")
    return result


def require_compiler(check: CheckResult, modes: tuple[object, ...]) -> None:
    """Raise where strategies are to be compiled and nothing can be.

    Raises:
        MachineError: so it is.
    """
    if check.can_compile or set(modes) == {COMPILE_OFF}:
        return
    raise MachineError(f"nothing can be compiled here: {check.reason} (--fix mode=off searches without)")


def make_study(bench: Bench, name: str) -> StudyRecord:
    """Return the study of this bench's key and budget, or card, as it is now."""
    return StudyRecord(
        name=name,
        key=bench.key,
        budget_bytes=bench.asked_bytes,
        card=bench.card,
        limit_bytes=bench.limits.limit_bytes,
        workload=bench.workload,
        environment=bench.environment,
        created_at=time.time(),
    )
