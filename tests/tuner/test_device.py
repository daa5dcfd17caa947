"""What the card is and who is on it, told by a fake NVML; the host's limits; the lock of a card."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tuner.fake_nvml import IDLE, TOTAL, UUID, Entry, FakeNvml, card
from tests.tuner.trials import ROOT
from tuner import device, host
from tuner.device import BaseLine, CardMeter, card_lock, check_clean, compare, read_base_line
from tuner.errors import MachineError
from tuner.units import GIB, MIB

__all__ = ["card"]


def test_the_card(card: FakeNvml) -> None:
    (found,) = device.list_cards()
    assert (found.uuid, found.name, found.type, found.driver) == (UUID, "NVIDIA H200", "cuda", "580.95.05")
    assert found.total_bytes == TOTAL - IDLE and found.multiprocessors is None
    told = found.told(total_bytes=150_110_000_000, multiprocessors=132)
    assert (told.total_bytes, told.multiprocessors) == (150_110_000_000, 132)
    assert found.told(total_bytes=None, multiprocessors=None) == found


def test_no_driver_is_no_card(card: FakeNvml) -> None:
    import pynvml

    def fail() -> None:
        raise pynvml.NVMLError_LibraryNotFound("no libnvidia-ml.so.1")

    pynvml.nvmlInit = fail
    assert device.list_cards() == []
    with pytest.raises(MachineError, match=r"no NVIDIA driver: no libnvidia-ml.so.1"):
        device.used_bytes(UUID)


def test_a_driver_that_does_not_answer_is_said(card: FakeNvml) -> None:
    card.broken = True
    with pytest.raises(MachineError, match="GPU is lost"):
        device.list_cards()
    with pytest.raises(MachineError, match="Not Found"):
        device.used_bytes("GPU-other")


def test_used_and_processes(card: FakeNvml) -> None:
    card.used = IDLE + 3 * GIB
    card.compute = [Entry(100, 2 * GIB), Entry(300, 1 * GIB), Entry(400, None)]
    card.graphics = [Entry(200, 300 * MIB), Entry(300, 1 * GIB)]
    card.names = {100: "train.py", 200: "Xorg", 300: "browser"}
    assert device.used_bytes(UUID) == IDLE + 3 * GIB
    found = {p.pid: (p.name, p.used_bytes, p.graphics) for p in device.processes(UUID)}
    assert found[100] == ("train.py", 2 * GIB, False)
    assert found[200] == ("Xorg", 300 * MIB, True)
    assert found[300] == ("browser", GIB, True), "in both lists: a desktop's"
    assert found[400][1] is None


def test_a_desktop_that_grows_only_lowers_t(card: FakeNvml) -> None:
    card.used, card.graphics = IDLE + GIB, [Entry(200, GIB)]
    start = read_base_line(UUID)
    card.used, card.graphics = IDLE + 3 * GIB, [Entry(200, 3 * GIB)]
    drift = compare(start, read_base_line(UUID))
    assert drift.clean and (drift.graphics_bytes, drift.foreign_bytes) == (2 * GIB, 0)


@pytest.mark.parametrize(("grown", "clean"), [(0, True), (256 * MIB, True), (256 * MIB + 1, False)])
def test_memory_without_an_owner(card: FakeNvml, grown: int, clean: bool) -> None:
    start = read_base_line(UUID)
    card.used = IDLE + grown
    drift = compare(start, read_base_line(UUID))
    assert drift.clean is clean and "no visible owner" in drift.foreign


def test_a_foreign_process_is_named(card: FakeNvml) -> None:
    card.compute, card.names = [Entry(50, GIB)], {50: "old.py", 60: "new.py"}
    card.used = IDLE + GIB
    start = read_base_line(UUID)
    card.compute.append(Entry(60, 4 * GIB))
    card.used += 4 * GIB
    drift = compare(start, read_base_line(UUID))
    assert not drift.clean and "60 new.py (4.00 GiB)" in drift.foreign and "old.py" not in drift.foreign


def test_less_than_at_the_start_is_clean() -> None:
    assert compare(BaseLine(5 * GIB), BaseLine(GIB)).foreign_bytes == 0


def test_check_clean_waits(card: FakeNvml) -> None:
    start = read_base_line(UUID)
    card.used = IDLE + GIB

    def leave(_: float) -> None:
        card.used = IDLE

    assert check_clean(UUID, start, 5, leave).clean
    card.used = IDLE + GIB
    assert not check_clean(UUID, start, 0).clean


def test_the_meter_counts_above_the_base_line(card: FakeNvml) -> None:
    card.used = IDLE + GIB
    meter = CardMeter(UUID, read_base_line(UUID))
    card.used += 1_722_600_000
    assert meter.used_bytes() == 1_722_600_000
    card.used = IDLE
    assert meter.used_bytes() == 0


def test_the_meter_leaves_a_desktop_out(card: FakeNvml) -> None:
    meter = CardMeter(UUID, read_base_line(UUID))
    card.used, card.graphics = IDLE + 3 * GIB, [Entry(200, GIB)]
    assert meter.foreign([1]) is None
    assert meter.used_bytes() == 2 * GIB


def test_the_meter_tells_others_from_the_worker(card: FakeNvml) -> None:
    card.names = {8: "train.py"}
    meter = CardMeter(UUID, read_base_line(UUID))
    shared = CardMeter(UUID, read_base_line(UUID), ignore_others=True)
    card.compute = [Entry(7, 2 * GIB), Entry(8, 3 * GIB), Entry(9, 10 * MIB)]
    assert meter.foreign([7]) == "8 train.py (3.00 GiB)"
    assert meter.foreign([7, 8]) is None
    assert meter.foreign([1234]) is None, "numbers of another namespace tell nothing"
    assert shared.foreign([7]) is None


def test_the_lock_keeps_a_second_search_out(tmp_path: Path) -> None:
    with card_lock(UUID, tmp_path):
        with pytest.raises(MachineError, match=f"process {os.getpid()}"), card_lock(UUID, tmp_path):
            pass
        with card_lock("GPU-other", tmp_path):
            pass
    with card_lock(UUID, tmp_path):
        pass


def test_the_lock_goes_with_a_killed_process(tmp_path: Path) -> None:
    code = (
        "import sys, time, pathlib; from tuner.device import card_lock\n"
        "with card_lock('GPU-1', pathlib.Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT)
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    with pytest.raises(MachineError, match=f"process {holder.pid}"), card_lock("GPU-1", tmp_path):
        pass
    holder.kill()
    holder.communicate()
    with card_lock("GPU-1", tmp_path):
        pass


def make_host(root: Path, files: dict[str, str]) -> Path:
    usual = {
        "proc/meminfo": "MemTotal:  16777216 kB\nMemAvailable:  12582912 kB\n",
        "proc/cpuinfo": "processor : 0\nmodel name\t: Test CPU 9000\n",
        "proc/self/cgroup": "0::/",
    }
    for name, text in (usual | files).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "available", "total"),
    [
        ({}, 12 * GIB, 16 * GIB),
        ({"sys/fs/cgroup/memory.max": f"{4 * GIB}\n"}, 4 * GIB, 4 * GIB),
        ({"sys/fs/cgroup/memory.max": "max\n"}, 12 * GIB, 16 * GIB),
        (
            {
                "proc/self/cgroup": "0::/a/b",
                "sys/fs/cgroup/a/memory.max": str(GIB),
                "sys/fs/cgroup/a/b/memory.max": "max",
            },
            GIB,
            GIB,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/job\n0::/",
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": str(2 * GIB),
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            },
            2 * GIB,
            2 * GIB,
        ),
    ],
)
def test_memory_of_the_host(tmp_path: Path, files: dict[str, str], available: int, total: int) -> None:
    root = make_host(tmp_path, files)
    assert (host.available_bytes(root), host.total_bytes(root)) == (available, total)


def test_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    root = make_host(tmp_path, {})
    assert host.worker_threads(root) == 7
    make_host(tmp_path, {"sys/fs/cgroup/cpu.max": "250000 100000"})
    assert host.worker_threads(root) == 2, "a container with 2.5 of the 8 cores"
    make_host(tmp_path, {"sys/fs/cgroup/cpu.max": "50000 100000"})
    assert host.worker_threads(root) == 1
    v1 = {
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "400000",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
    }
    make_host(tmp_path, v1 | {"proc/self/cgroup": "5:cpu,cpuacct:/"})
    assert host.worker_threads(root) == 3


def test_the_processors_name(tmp_path: Path) -> None:
    assert host.processor_name(make_host(tmp_path, {})) == "Test CPU 9000"
    assert host.processor_name(make_host(tmp_path, {"proc/cpuinfo": "processor : 0\n"})).endswith(" processor")


def test_this_machine() -> None:
    here = device.cpu_device()
    assert here.type == "cpu" and here.uuid is None and here.name
    assert 0 < device.available_bytes() <= here.total_bytes
    assert device.worker_threads() >= 1


def test_neither_torch_nor_cuda_is_touched() -> None:
    code = "import sys, tuner.executor; sys.exit(any(m in sys.modules for m in ('torch', 'pynvml', 'optuna')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
