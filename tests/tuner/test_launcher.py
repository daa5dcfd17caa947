"""A worker process is started as asked, watched, and ended whole. Real processes, fake workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from tests.tuner.trials import FAKES, ROOT, fake, request
from tuner import processes
from tuner.kinds import KillReason, Phase
from tuner.launcher import Launcher, default_deadlines, find_strays, kill_strays, worker_environment
from tuner.protocol import Attempt, TrialRequest
from tuner.trial_dir import TrialDir
from tuner.units import GIB, MIB
from tuner.watcher import Worker

BASE = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
Start = Callable[..., Worker]


@pytest.fixture
def folder(tmp_path: Path) -> TrialDir:
    return TrialDir.create(tmp_path, "study", "0")


@pytest.fixture
def run(folder: TrialDir) -> Callable[..., Attempt]:
    """Run a fake worker to its end."""

    def run(name: str, *arguments: str, asked: TrialRequest | None = None, **settings: object) -> Attempt:
        launcher = Launcher(BASE, **settings)  # type: ignore[arg-type]
        worker = launcher.start(asked or request(), folder, fake(name, folder.path, *arguments))
        attempt = worker.wait(15)
        assert attempt is not None, "the worker was not ended"
        return attempt

    return run


def gone(pid: int) -> bool:
    stat = processes.read_stat(pid)
    return stat is None or not stat.alive


def wait_for(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def read_children(folder: TrialDir) -> list[int]:
    path = folder.path / "children"
    assert wait_for(lambda: path.exists() and path.read_text() != "")
    return [int(word) for word in path.read_text().split()]


def test_a_good_worker(run: Callable[..., Attempt]) -> None:
    attempt = run("ok")
    assert (attempt.exit_code, attempt.exit_signal, attempt.kill_reason, attempt.strays) == (0, None, None, ())
    assert attempt.result is not None and attempt.result.throughput is not None
    assert [event.phase for event in attempt.events] == [Phase.LOAD, Phase.FIRST_STEP, Phase.STEADY]
    assert set(attempt.device_peaks) >= {Phase.LOAD, Phase.FIRST_STEP, Phase.STEADY}
    assert all(2 * MIB < peak < 200 * MIB for peak in attempt.device_peaks.values())
    assert 0.3 < attempt.seconds < 5 and attempt.compilers_peak_bytes == 0
    assert "stdin /dev/null" in attempt.tail


def test_the_worker_gets_its_environment(run: Callable[..., Attempt], folder: TrialDir) -> None:
    asked = request(cache_dir="/cache", environment={"GOMP_SPINCOUNT": "0"})
    run("ok", asked=asked)
    text = (folder.path / "environ").read_bytes().decode()
    seen = dict(item.split("=", 1) for item in text.split("\0") if item)
    assert seen["GOMP_SPINCOUNT"] == "0" and seen["PYTHONUNBUFFERED"] == "1"
    assert seen["TUNER_TRIAL"] == asked.trial_uuid and processes.is_alive(seen["TUNER_PARENT"])
    assert seen["TORCHINDUCTOR_CACHE_DIR"] == "/cache/inductor" and seen["TRITON_CACHE_DIR"] == "/cache/triton"


def test_the_environment_of_card_and_cpu() -> None:
    base = {"CUDA_VISIBLE_DEVICES": "3", "TORCH_COMPILE_JOB_ID": "job", "HOME": "/home"}
    on_cpu = worker_environment(base, request(), 5)
    on_card = worker_environment(base, request(device_type="cuda", device_uuid="GPU-1"), 5)
    assert on_cpu["CUDA_VISIBLE_DEVICES"] == "" and on_card["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    assert "TORCH_COMPILE_JOB_ID" not in on_cpu and on_cpu["HOME"] == "/home"
    assert base["TORCH_COMPILE_JOB_ID"] == "job"


def test_the_users_settings_of_torch_are_not_a_strategys() -> None:
    base = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "TORCHINDUCTOR_MAX_AUTOTUNE": "1", "HOME": "/home"}
    asked = request(environment={"TORCHINDUCTOR_AUTOTUNE_IN_SUBPROC": "0"})
    seen = worker_environment(base, asked, 5)
    assert "PYTORCH_CUDA_ALLOC_CONF" not in seen and "TORCHINDUCTOR_MAX_AUTOTUNE" not in seen
    assert seen["TORCHINDUCTOR_AUTOTUNE_IN_SUBPROC"] == "0" and seen["HOME"] == "/home"
    on = request(environment={"PYTORCH_ALLOC_CONF": "expandable_segments:True"})
    assert worker_environment(base, on, 5)["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"


def test_a_worker_that_hangs_is_ended_at_its_deadline(run: Callable[..., Attempt]) -> None:
    attempt = run("hang", asked=request(deadlines={Phase.FIRST_STEP: 0.3}))
    assert attempt.kill_reason is KillReason.DEADLINE and attempt.exit_signal == signal.SIGKILL
    assert attempt.events[-1].phase is Phase.FIRST_STEP and attempt.result is None
    assert attempt.seconds < 3


def test_a_worker_that_dies_of_a_signal(run: Callable[..., Attempt]) -> None:
    attempt = run("segfault")
    assert (attempt.exit_code, attempt.exit_signal, attempt.kill_reason) == (None, signal.SIGSEGV, None)


def test_half_a_result_and_none(run: Callable[..., Attempt], tmp_path: Path) -> None:
    half = run("half_result")
    assert half.result is None and half.result_error is not None and "not whole JSON" in half.result_error
    other = TrialDir.create(tmp_path, "study", "1")
    none = Launcher(BASE).start(request(), other, fake("no_result", other.path)).wait(10)
    assert none is not None and (none.exit_code, none.result, none.result_error) == (0, None, None)


@pytest.mark.parametrize("end", ["ok", "fail"])
def test_what_a_worker_left_is_killed_and_named(run: Callable[..., Attempt], folder: TrialDir, end: str) -> None:
    attempt = run("grandchild", end)
    children = read_children(folder)
    assert all(processes.read_stat(pid) is None for pid in children), "killed, but not reaped"
    assert sorted(attempt.strays) == sorted(f"{pid} sleep 600" for pid in children)
    assert (attempt.result is not None) == (end == "ok") and attempt.kill_reason is None


def test_killing_reaches_a_child_in_its_own_session(run: Callable[..., Attempt], folder: TrialDir) -> None:
    attempt = run("grandchild", "hang", asked=request(deadlines={Phase.SETTLE: 0.2}))
    in_group, escaped = read_children(folder)
    assert processes.read_stat(in_group) is None and processes.read_stat(escaped) is None
    assert attempt.strays == (f"{escaped} sleep 600",) and attempt.kill_reason is KillReason.DEADLINE


def test_a_child_without_the_marker_is_known_by_sight(run: Callable[..., Attempt], folder: TrialDir) -> None:
    attempt = run("unmarked_grandchild")
    (child,) = read_children(folder)
    assert processes.read_stat(child) is None and attempt.strays == (f"{child} sleep 600",)


def test_what_comes_after_measuring_is_in_no_peak(run: Callable[..., Attempt]) -> None:
    attempt = run("measured", "0.3", asked=request(limit_bytes=150 * MIB))
    assert attempt.kill_reason is None and attempt.result is not None
    assert attempt.device_peaks[Phase.STEADY] < 100 * MIB


def test_what_comes_after_measuring_has_a_deadline_too(run: Callable[..., Attempt]) -> None:
    attempt = run("measured", "600", asked=request(deadlines={Phase.STEADY: 0.3}))
    assert attempt.kill_reason is KillReason.DEADLINE and attempt.result is None


def test_memory_past_the_limit_ends_the_worker(run: Callable[..., Attempt]) -> None:
    limit = 150 * MIB
    attempt = run("hungry", asked=request(limit_bytes=limit))
    assert attempt.kill_reason is KillReason.MEMORY and attempt.exit_signal == signal.SIGKILL
    assert limit < attempt.device_peaks[Phase.FIRST_STEP] < limit + 100 * MIB


def test_compilers_count_beside_the_worker(run: Callable[..., Attempt]) -> None:
    attempt = run("hungry_child", asked=request(limit_bytes=100 * MIB), host_total_bytes=200 * MIB)
    assert attempt.kill_reason is KillReason.HOST_MEMORY
    assert attempt.device_peaks[Phase.FIRST_STEP] < 100 * MIB
    assert attempt.compilers_peak_bytes is not None and attempt.compilers_peak_bytes > 100 * MIB


def test_what_compilers_share_counts_once(run: Callable[..., Attempt]) -> None:
    attempt = run("sharing_children", asked=request(limit_bytes=100 * MIB), host_total_bytes=400 * MIB)
    assert attempt.kill_reason is None, "four processes of 150 MiB each hold 150 MiB"
    assert attempt.compilers_peak_bytes is not None and 140 * MIB < attempt.compilers_peak_bytes < 250 * MIB


def test_a_result_stands_though_the_worker_hangs_at_exit(run: Callable[..., Attempt]) -> None:
    asked = request(deadlines={Phase.STEADY: 0.1})
    attempt = run("result_then_hang", asked=asked, grace_s=0.5)
    assert attempt.result is not None and attempt.kill_reason is None
    assert attempt.exit_signal == signal.SIGKILL and 0.5 < attempt.seconds < 3


def test_kill_says_why(folder: TrialDir) -> None:
    worker = Launcher(BASE).start(request(), folder, fake("hang", folder.path))
    assert wait_for(lambda: worker.phase is Phase.FIRST_STEP)
    assert worker.poll() is None
    worker.kill(KillReason.CANCELLED)
    attempt = worker.wait(2)
    assert attempt is not None and attempt.kill_reason is KillReason.CANCELLED and gone(worker.pid)


def test_a_command_that_does_not_exist(folder: TrialDir) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        Launcher(BASE).start(request(), folder, ["/no/such/program"])
    assert len(os.listdir("/proc/self/fd")) == before


def test_no_descriptor_is_left_open(run: Callable[..., Attempt]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    run("ok")
    assert len(os.listdir("/proc/self/fd")) == before


class FakeMeter:
    """A card that holds 3 GiB of ours, and somebody else's process after a while."""

    def __init__(self, visitor_after: int) -> None:
        self._calls, self._visitor_after = 0, visitor_after

    def used_bytes(self) -> int:
        return 3 * GIB

    def foreign(self, own: Collection[int]) -> str | None:
        self._calls += 1
        return "99 train.py" if self._calls > self._visitor_after else None


@pytest.mark.parametrize("visitor_after", [10_000, 2])
def test_a_card_is_measured_through_its_meter(folder: TrialDir, visitor_after: int) -> None:
    asked = request(device_type="cuda", device_uuid="GPU-1", limit_bytes=2 * GIB)
    worker = Launcher(BASE).start(asked, folder, fake("ok", folder.path), FakeMeter(visitor_after))
    attempt = worker.wait(10)
    assert attempt is not None and set(attempt.device_peaks.values()) == {3 * GIB}
    assert attempt.compilers_peak_bytes is None
    expected = (None, None) if visitor_after > 2 else (KillReason.FOREIGN, "99 train.py")
    assert (attempt.kill_reason, attempt.foreign) == expected


def test_a_card_needs_a_meter(folder: TrialDir) -> None:
    with pytest.raises(ValueError, match="meter"):
        Launcher(BASE).start(request(device_type="cuda", device_uuid="GPU-1"), folder, ["true"])


@pytest.mark.parametrize("way", ["kernel", "thread", "signal"])
def test_worker_and_child_die_with_the_parent(folder: TrialDir, tmp_path: Path, way: str) -> None:
    asked = request()
    (tmp_path / "request.json").write_text(asked.model_dump_json())
    words = [sys.executable, str(FAKES / "parent.py"), str(tmp_path / "request.json"), str(folder.path)]
    parent = subprocess.Popen([*words, str(FAKES / "watching.py"), way], env=BASE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    in_group, escaped = read_children(folder)
    assert find_strays() == [], "its parent is alive"
    parent.kill()
    parent.communicate()
    try:
        assert wait_for(lambda: gone(worker), 2), "the worker outlived its parent"
        if way != "signal":
            assert wait_for(lambda: gone(in_group), 2), "a child of the worker outlived the parent"
        if way == "thread":
            assert wait_for(lambda: gone(escaped), 2)
    finally:
        strays = [stray for stray in find_strays() if stray.trial_uuid == asked.trial_uuid]
        kill_strays(strays)
    assert gone(in_group) and gone(escaped)
    assert way != "kernel" or [stray.name for stray in strays] == [f"{escaped} sleep 600"]


def test_default_deadlines() -> None:
    short, long = default_deadlines(60), default_deadlines(3600)
    assert set(short) == set(Phase)
    assert short[Phase.FIRST_STEP] == 180 and long[Phase.FIRST_STEP] == 900
    assert long[Phase.WARMUP_BATCH] == long[Phase.FIRST_STEP]
    assert short[Phase.LONGEST_BATCH] == 480, "what is replayed compiles anew"
    for phase in (Phase.SETTLE, Phase.STEADY):
        assert short[phase] == 300 and long[phase] == 900, "steps of a minute each have to fit"
