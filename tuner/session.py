"""Everything that a search or a run needs, opened in order and closed again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from optuna.trial import TrialState

from strategies.knob import COMPILE_OFF, Target, Value
from tuner import device as devices
from tuner import resume
from tuner.check import check_cache, check_file, run_check
from tuner.checklist import disk_item
from tuner.chooser import Chooser
from tuner.device import DeviceInfo
from tuner.encoding import decode, distributions
from tuner.environment import Environment
from tuner.errors import MachineError, WrongInput
from tuner.executor import LocalExecutor
from tuner.host import worker_threads
from tuner.inherited import left_out
from tuner.launcher import Launcher, default_deadlines
from tuner.ledger import Ledger
from tuner.limits import Limits, limits
from tuner.listener import Listener
from tuner.machine import CheckResult
from tuner.record import StudyRecord, TrialRecord
from tuner.records import Records
from tuner.recovery import left_over, recover
from tuner.requests import Requests
from tuner.search import Search
from tuner.space import Space, canonical, fingerprint
from tuner.spec import StudySpec, make_filter, make_target, make_workload
from tuner.stopping import never
from tuner.storage import DEFAULT_FILE, Storage, open_storage
from tuner.strays import find_strays, kill_strays
from tuner.study import StudyHandle, default_name, open_study
from tuner.units import GIB, format_gib
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


def pick_device(given: str | None, visible: str | None) -> DeviceInfo:
    """Return the device that ``--device`` names: the first card unless said, else the CPU.

    Args:
        visible: CUDA_VISIBLE_DEVICES, which renumbers the cards; None: not set.

    Raises:
        WrongInput: it has another form, or there are not so many cards.
        MachineError: a card is asked for and there is none.
    """
    if given == "cpu":
        return devices.cpu_device()
    kind, _, number = ("cuda" if given is None else given).partition(":")
    if kind != "cuda" or (number and not number.isdigit()):
        raise WrongInput("device", "must be cpu, cuda or cuda:N", given)
    cards = _visible(devices.list_cards(), visible)
    if not cards and given is None:
        return devices.cpu_device()
    if not cards:
        raise MachineError(
            "no CUDA card can be seen here: NVIDIA's driver is missing, or CUDA_VISIBLE_DEVICES hides it"
        )
    if int(number or 0) >= len(cards):
        raise WrongInput("device", f"must be one of cuda:0 to cuda:{len(cards) - 1}", given)
    return cards[int(number or 0)]


def _visible(cards: list[DeviceInfo], visible: str | None) -> list[DeviceInfo]:
    if visible is None:
        return cards
    found = []
    for word in visible.split(","):
        word = word.strip()
        if word.isdigit() and int(word) < len(cards):
            found.append(cards[int(word)])
        else:
            found += [card for card in cards if word and (card.uuid or "").startswith(word)]
    return found


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
        asked = _asked(spec, device)
        given = _given(device)
        found = limits(asked, given, device.type, total_bytes=device.total_bytes)
        notes = [*storage.notes, *([f"assumed: {', '.join(assumed)}"] if assumed else [])]
        if names := left_out(environment):
            notes.append(f"not handed on to trials, as it would change what is measured: {', '.join(names)}")
        if found.clamped and spec.budget_bytes is not None:
            notes.append(f"the budget is clamped to the {format_gib(found.budget_bytes)} that the device gives")
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
            asked_bytes=asked,
            workload=workload,
            environment=made,
            target=make_target(workload, device.type, found.emulated, device.multiprocessors),
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
    if spec.budget_bytes is not None:
        # NVML's total is larger than CUDA's: what is too much for it is too much.
        limits(spec.budget_bytes, device.total_bytes, device.type)
    target = make_target(workload, device.type, False, device.multiprocessors)
    allowed, _ = make_filter(spec, target)
    require_some(Space(target, allowed))


def require_some(space: Space) -> None:
    """Raise where the filters leave nothing.

    Raises:
        WrongInput: so it is.
    """
    if len(space) == 0:
        raise WrongInput("fix, knob", "leave no strategy that can work here (`tuner knobs` says why)")


def _asked(spec: StudySpec, device: DeviceInfo) -> int:
    """The budget that the study is of. On a CPU more than there is stands for all there is."""
    if spec.budget_bytes is None:
        return _whole(device)
    return spec.budget_bytes if device.type == "cuda" else min(spec.budget_bytes, _whole(device))


def _whole(device: DeviceInfo) -> int:
    """The budget where none is asked for. On a CPU in whole GiB, so that a study is found again."""
    return device.total_bytes if device.type == "cuda" else max(GIB, device.total_bytes // GIB * GIB)


def _given(device: DeviceInfo) -> int:
    """T: what the device gives a process now."""
    if device.uuid is None:
        return devices.available_bytes()
    base = devices.read_base_line(device.uuid)
    # The driver's own share lies outside what CUDA reports as total; what people see does not.
    others = sum(p.used_bytes or 0 for p in base.processes)
    return device.total_bytes - others


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


def make_requests(bench: Bench, study: str, spec: StudySpec) -> Requests:
    """Return what makes this bench's requests."""
    return Requests(
        study=study,
        key=bench.key,
        workload=bench.workload,
        device_type=bench.device.type,
        device_uuid=bench.device.uuid,
        limits=bench.limits,
        deadlines=default_deadlines(spec.time_budget_seconds) | spec.deadline,
        seed=spec.seed,
        root=bench.root,
        cold=spec.cold,
    )


def make_executor(bench: Bench, spec: StudySpec, environment: Mapping[str, str]) -> LocalExecutor:
    """Return the executor of this bench's device."""
    on_cpu = bench.device.type == "cpu"
    return LocalExecutor(
        Launcher(environment, host_total_bytes=bench.limits.t_bytes if on_cpu else None),
        bench.device,
        t_bytes=None if on_cpu else bench.given_bytes,
        shared_card=spec.shared_card,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSession:
    """An open search and its study."""

    search: Search
    study: StudyRecord
    records: Records
    notes: tuple[str, ...]
    eager_only: bool
    """The user fixed ``mode=off``."""


@contextmanager
def open_search(
    spec: StudySpec, environment: Mapping[str, str], listener: Listener, stopped: Callable[[], bool]
) -> Iterator[SearchSession]:
    """Open the study of `spec`, new or to be resumed, with its lease and its device held.

    Raises:
        MachineError: the machine cannot do it, or another search holds study or card.
        WrongInput: the spec cannot be used here.
    """
    ends_at = time.time() + spec.time_budget_seconds
    with ExitStack() as stack:
        bench = stack.enter_context(open_bench(spec, environment, listener, stopped=stopped))
        allowed, filter_notes = make_filter(spec, bench.target)
        require_compiler(bench.check, allowed["mode"])
        study = _study(bench, spec)
        kill_left_over(listener)
        lease = bench.records.acquire_lease(study.name)
        stack.callback(bench.records.release, lease)
        space = Space(bench.target, allowed)
        require_some(space)
        handle = open_study(
            bench.storage, bench.records, name=study.name, target=bench.target, study_record=study,
            sampler=spec.sampler, seed=spec.seed, space=space,
        )  # fmt: skip
        requests = make_requests(bench, study.name, spec)
        eager_only = set(allowed["mode"]) == {COMPILE_OFF}
        ledger = Ledger(
            study, bench.records.for_key(bench.key), handle.known.add,
            eager_only=eager_only, space=space, deadlines=requests.deadlines,
        )  # fmt: skip
        requests.learn(ledger.records)
        again = _take_over(handle, bench.records, ledger, requests)
        executor = stack.enter_context(make_executor(bench, spec, environment))
        chooser = Chooser(
            handle=handle, ledger=ledger, requests=requests, listener=listener, ends_at=ends_at,
            trials=spec.trials, sampler=spec.sampler, again=again,
        )  # fmt: skip
        search = Search(
            handle=handle, records=bench.records, ledger=ledger, executor=executor, requests=requests,
            chooser=chooser, listener=listener, stopped=stopped, beat=lambda: bench.records.beat(lease),
        )  # fmt: skip
        notes = (*bench.notes, *filter_notes)
        yield SearchSession(search=search, study=study, records=bench.records, notes=notes, eager_only=eager_only)


def make_study(bench: Bench, name: str) -> StudyRecord:
    """Return the study of this bench's key and budget, as it is now."""
    return StudyRecord(
        name=name,
        key=bench.key,
        budget_bytes=bench.asked_bytes,
        limit_bytes=bench.limits.limit_bytes,
        workload=bench.workload,
        environment=bench.environment,
        created_at=time.time(),
    )


def _study(bench: Bench, spec: StudySpec) -> StudyRecord:
    record = make_study(bench, spec.study or "")
    return record if spec.study else record.model_copy(update={"name": default_name(record, bench.target)})


def _take_over(handle: StudyHandle, records: Records, ledger: Ledger, requests: Requests) -> list[dict[str, Value]]:
    """Take over what there is from before; return the strategies that were interrupted."""

    whole = len(distributions(handle.target))  # a trial that died while it was asked has fewer
    running = [trial for trial in handle.trials(TrialState.RUNNING) if len(trial.params) == whole]
    asked = {trial.number: fingerprint(decode(trial.params, handle.target)) for trial in running}

    def keep(number: int) -> TrialRecord | None:
        record = recover(number, requests, ledger)
        # The folder may be of an earlier database.
        if record is None or record.fingerprint != asked.get(number):
            return None
        ledger.add(record)
        requests.learn([record])
        return record

    again = resume.sweep(handle, records, keep)
    made = records.study(ledger.study.name)
    for record in left_over(requests, ledger, ledger.study.created_at if made is None else made.created_at):
        records.add(record)
        ledger.add(record)
        requests.learn([record])
    by_cap: dict[int | None, list[TrialRecord]] = {}
    for record in ledger.records:  # the cap depends on the kind of mode
        by_cap.setdefault(requests.cap_bytes(canonical(record.strategy)), []).append(record)
    for cap_bytes, group in by_cap.items():
        resume.seed_from_records(handle, group, cap_bytes=cap_bytes, deadlines=requests.deadlines)
    return again


def kill_left_over(listener: Listener) -> None:
    """Name and end workers whose search is gone."""
    strays = find_strays()
    if strays:
        kill_strays(strays)
        names = ", ".join(f"{stray.pid} {stray.name}" for stray in strays)
        listener.message(f"ended what an earlier search left: {names}")
