"""Finds and ends what a worker left behind, in its process group or out of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from tuner import processes
from tuner.errors import MachineError
from tuner.processes import ProcessStat

TRIAL_VARIABLE = "TUNER_TRIAL"
"""In the environment of a worker and of all that it starts: the trial's uuid."""
PARENT_VARIABLE = "TUNER_PARENT"
"""Beside it: the search's process, as `processes.identity` names it."""

_LEAVE_S = 0.5
"""What is still about when a worker ended by itself may take so long to go."""
DIE_S = 10.0
"""A killed process that is still there after this is stuck in the kernel."""


@dataclass(frozen=True, slots=True)
class Stray:
    """A process of a trial whose search is dead."""

    pid: int
    start_ticks: int
    trial_uuid: str
    name: str


class Family:
    """The processes of one trial: by group, by marker, and by having been seen under the worker."""

    def __init__(self, group: int, trial_uuid: str) -> None:
        self.group = group
        self.trial_uuid = trial_uuid
        self._seen: dict[int, int] = {}

    def look(self) -> list[int]:
        """Remember and return the worker's descendants of this moment."""
        found = [stat for pid in processes.descendants(self.group) if (stat := processes.read_stat(pid))]
        self._seen.update((stat.pid, stat.start_ticks) for stat in found)
        return [stat.pid for stat in found]

    def members(self) -> list[ProcessStat]:
        """Return what there is of it among our descendants; the worker itself and the dead included."""
        stats = (processes.read_stat(pid) for pid in processes.descendants(os.getpid(), surely=True))
        found = [stat for stat in stats if stat is not None and self._is_member(stat)]
        # Once dead it shows its marker no more, and still has to be reaped.
        self._seen.update((stat.pid, stat.start_ticks) for stat in found)
        return found

    def wait_until_left(self) -> list[str]:
        """Give what outlived the worker a moment to go, and name what is still there."""
        deadline = time.monotonic() + _LEAVE_S
        while (left := self._alive()) and time.monotonic() < deadline:
            time.sleep(0.02)
        return [processes.describe(stat.pid) for stat in left]

    def kill_group(self) -> None:
        """Kill worker and group; before the worker is reaped, so that the number is still theirs."""
        _send(os.killpg, self.group)

    def kill_rest(self) -> list[str]:
        """Kill and reap every member, until none is left; name those that had left the group."""
        names: dict[int, str] = {}
        deadline = time.monotonic() + DIE_S
        while members := self.members():
            for stat in members:
                if stat.alive and stat.group != self.group:
                    names.setdefault(stat.pid, processes.describe(stat.pid))
                _send(os.kill, stat.pid)
                _reap(stat)
            _check_deadline(deadline, members)
            time.sleep(0.005)
        return list(names.values())

    def _alive(self) -> list[ProcessStat]:
        return [stat for stat in self.members() if stat.alive and stat.pid != self.group]

    def _is_member(self, stat: ProcessStat) -> bool:
        if stat.group == self.group or self._seen.get(stat.pid) == stat.start_ticks:
            return True
        return processes.read_environment(stat.pid).get(TRIAL_VARIABLE) == self.trial_uuid


def find_strays() -> list[Stray]:
    """Return the processes of trials whose search is dead; those of a living search are no strays.

    Those of another container are left alone: whether their search lives cannot be told from here.
    """
    found: list[Stray] = []
    for pid in processes.all_pids():
        environment = processes.read_environment(pid)
        trial_uuid, parent = environment.get(TRIAL_VARIABLE), environment.get(PARENT_VARIABLE)
        if not trial_uuid or not parent or not processes.is_ours_to_judge(parent) or processes.is_alive(parent):
            continue
        stat = processes.read_stat(pid)
        if stat is not None and stat.alive:
            found.append(Stray(pid, stat.start_ticks, trial_uuid, processes.describe(pid)))
    return found


def kill_strays(strays: Collection[Stray]) -> None:
    """Kill what `find_strays` named and wait until it is gone.

    Raises:
        MachineError: one does not die.
    """
    deadline = time.monotonic() + DIE_S
    while left := [stat for stray in strays if (stat := _same(stray)) is not None]:
        for stat in left:
            _send(os.kill, stat.pid)
        _check_deadline(deadline, left)
        time.sleep(0.005)


def _same(stray: Stray) -> ProcessStat | None:
    stat = processes.read_stat(stray.pid)
    return stat if stat is not None and stat.alive and stat.start_ticks == stray.start_ticks else None


def _send(kill: Callable[[int, int], None], number: int) -> None:
    try:
        kill(number, signal.SIGKILL)
    except ProcessLookupError:
        return


def _reap(stat: ProcessStat) -> None:
    # The child of another process of the family becomes ours once that one is dead.
    if stat.parent == os.getpid():
        try:
            os.waitpid(stat.pid, os.WNOHANG)
        except ChildProcessError:
            return


def _check_deadline(deadline: float, left: Collection[ProcessStat]) -> None:
    if time.monotonic() > deadline:
        names = ", ".join(f"{processes.describe(stat.pid)} (state {stat.state})" for stat in left)
        raise MachineError(f"killed, but still there after {DIE_S:.0f} s: {names}")
