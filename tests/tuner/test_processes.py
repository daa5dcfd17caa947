"""What /proc says about processes, on this kernel and on one that lists no children."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator

import pytest

from tuner import processes


@pytest.fixture
def family() -> Iterator[subprocess.Popen[str]]:
    """A shell (with an awkward name) that has a child asleep."""
    code = 'sleep 60 & echo "$!"; wait'
    shell = subprocess.Popen(
        ["bash", "-c", f"exec -a 'a ) b' bash -c '{code}'"],
        env=os.environ | {"TUNER_MARK": "x=y"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    yield shell
    os.killpg(shell.pid, 9)
    shell.communicate()


@pytest.mark.parametrize("listed", [True, False])
def test_descendants(monkeypatch: pytest.MonkeyPatch, family: subprocess.Popen[str], listed: bool) -> None:
    assert family.stdout is not None
    child = int(family.stdout.readline())
    monkeypatch.setattr(processes, "_kernel_lists_children", lambda: listed)
    assert processes.descendants(family.pid) == [child]
    found = processes.descendants(os.getpid())
    assert found.index(family.pid) < found.index(child)


def test_stat_environment_and_memory(family: subprocess.Popen[str]) -> None:
    assert family.stdout is not None
    family.stdout.readline()
    stat = processes.read_stat(family.pid)
    assert stat is not None and stat.alive
    assert (stat.parent, stat.group) == (os.getpid(), family.pid)
    assert processes.read_environment(family.pid)["TUNER_MARK"] == "x=y"
    assert processes.resident_bytes(family.pid) > 2**19
    assert 0 < processes.proportional_bytes(family.pid) <= processes.resident_bytes(family.pid) + processes.PAGE_BYTES
    assert processes.describe(family.pid).startswith(f"{family.pid} a ) b")


def test_the_dead_and_the_gone() -> None:
    process = subprocess.Popen(["true"])
    identity = processes.identity(process.pid)
    assert processes.is_alive(processes.identity(os.getpid()))
    deadline = time.monotonic() + 5
    while processes.is_alive(identity) and time.monotonic() < deadline:
        time.sleep(0.01)
    stat = processes.read_stat(process.pid)
    assert stat is not None and not stat.alive, "dead, but not reaped"
    process.wait()
    assert processes.read_stat(process.pid) is None
    assert processes.resident_bytes(process.pid) == processes.proportional_bytes(process.pid) == 0
    assert processes.read_environment(process.pid) == {}
    assert processes.descendants(process.pid) == [] and not processes.is_alive(identity)


def test_a_number_used_again_is_another_process() -> None:
    pid, start, namespace = processes.identity(os.getpid()).split(":")
    assert not processes.is_alive(f"{pid}:{int(start) + 1}:{namespace}")


def test_a_process_of_another_container_is_not_ours_to_judge() -> None:
    mine = processes.identity(os.getpid())
    assert processes.is_ours_to_judge(mine)
    pid, start, namespace = mine.split(":")
    assert int(namespace) == os.stat("/proc/self/ns/pid").st_ino
    assert not processes.is_ours_to_judge(f"{pid}:{start}:{int(namespace) + 1}")
    assert not processes.is_ours_to_judge(f"{pid}:{start}"), "of a version that did not say"
