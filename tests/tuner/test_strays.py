"""What a worker left is found by group, by marker and by sight; other searches' processes are left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid

import pytest

from tuner import parent_pipe, processes
from tuner.strays import PARENT_VARIABLE, TRIAL_VARIABLE, Family, find_strays, kill_strays

NOBODY = f"4194303:1:{processes.pid_namespace()}"
"""A process that does not exist."""


def start_orphan(trial_uuid: str, parent: str = NOBODY) -> int:
    """Start a sleeper in its own session whose parent is dead; return its number."""
    environment = os.environ | {TRIAL_VARIABLE: trial_uuid, PARENT_VARIABLE: parent}
    words = ["sh", "-c", "setsid sleep 600 > /dev/null & echo $!"]
    return int(subprocess.run(words, env=environment, stdout=subprocess.PIPE, check=True).stdout)


@pytest.mark.parametrize("attempt", range(5))
def test_an_orphan_known_by_its_marker_alone_is_killed_and_reaped(attempt: int) -> None:
    parent_pipe.become_subreaper()
    trial_uuid = uuid.uuid4().hex
    orphans = [start_orphan(trial_uuid) for _ in range(3)]
    other = start_orphan("another")
    try:
        names = Family(-1, trial_uuid).kill_rest()
        assert sorted(int(name.split()[0]) for name in names) == sorted(orphans)
        assert all(processes.read_stat(pid) is None for pid in orphans)
    finally:
        os.kill(other, signal.SIGKILL)  # Raises where it went too, though it is another trial's.
        os.waitpid(other, 0)


def test_a_worker_of_another_container_is_left_alone() -> None:
    parent_pipe.become_subreaper()
    trial_uuid = uuid.uuid4().hex
    # Its search has a number that is nobody's here.
    worker = start_orphan(trial_uuid, f"4194303:1:{processes.pid_namespace() + 1}")
    try:
        assert trial_uuid not in {stray.trial_uuid for stray in find_strays()}
    finally:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)


def test_only_the_strays_of_dead_searches_are_found() -> None:
    parent_pipe.become_subreaper()
    trial_uuid = uuid.uuid4().hex
    lost = start_orphan(trial_uuid)
    held = start_orphan(trial_uuid, processes.identity(os.getpid()))
    found = [stray for stray in find_strays() if stray.trial_uuid == trial_uuid]
    assert [stray.pid for stray in found] == [lost]
    kill_strays(found)
    alive = [pid for pid in (lost, held) if (stat := processes.read_stat(pid)) and stat.alive]
    assert alive == [held]
    kill_strays(found)  # Gone already: nothing to do.
    os.kill(held, signal.SIGKILL)
    for pid in (lost, held):
        os.waitpid(pid, 0)
