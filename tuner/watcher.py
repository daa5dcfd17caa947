"""Watches one worker process from launch to the last process reaped, in a thread of the parent."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Collection
from typing import Protocol

from tuner import processes
from tuner.errors import MachineError, TunerError
from tuner.kinds import KillReason, Phase
from tuner.protocol import Attempt, Event, TrialRequest
from tuner.strays import DIE_S, Family
from tuner.trial_dir import RESULT_MISSING, TrialDir

PERIOD_S = 0.02
"""Between two samples of memory."""
_LOOK_EVERY = 5
"""Samples between two looks for new descendants, and for others on the card."""


class Meter(Protocol):
    """What the watcher asks of a card (`device.CardMeter`)."""

    def used_bytes(self) -> int:
        """Memory in use above the base line."""
        ...

    def foreign(self, own: Collection[int]) -> str | None:
        """Name compute processes on the card besides `own` and those of the base line."""
        ...


class Memory:
    """Samples what the trial takes: of the card, or of the host where there is no card."""

    def __init__(self, family: Family, request: TrialRequest, meter: Meter | None, host_total_bytes: int | None):
        self.peaks: dict[Phase, int] = {}
        self.compilers_peak_bytes = 0
        self.foreign: str | None = None
        self._family, self._limit_bytes = family, request.limit_bytes
        self._meter, self._host_total_bytes = meter, host_total_bytes
        self._children: list[int] = []
        self._count = 0

    def sample(self, phase: Phase) -> KillReason | None:
        """Take one sample; a reason to kill where it is one."""
        look = self._count % _LOOK_EVERY == 0
        self._count += 1
        if look:
            self._children = self._family.look()
        if self._meter is None:
            return self._sample_host(phase, look)
        self._keep(phase, self._meter.used_bytes())
        if look:
            self.foreign = self._meter.foreign([self._family.group, *self._children])
        return KillReason.FOREIGN if self.foreign else None

    def _sample_host(self, phase: Phase, look: bool) -> KillReason | None:
        worker = processes.resident_bytes(self._family.group)
        self._keep(phase, worker)
        compilers = self._measure_compilers(worker) if look else 0
        if worker > self._limit_bytes:
            return KillReason.MEMORY
        if self._host_total_bytes is not None and worker + compilers > self._host_total_bytes:
            return KillReason.HOST_MEMORY
        return None

    def _measure_compilers(self, worker_bytes: int) -> int:
        """Return what the compilers hold together: forked from one process, they share most of what each shows."""
        shown = sum(map(processes.resident_bytes, self._children))
        too_much = self._host_total_bytes is not None and worker_bytes + shown > self._host_total_bytes
        if shown <= self.compilers_peak_bytes and not too_much:
            return shown  # No peak and no reason to kill: the exact figure, which takes milliseconds, is not needed.
        held = sum(map(processes.proportional_bytes, self._children))
        self.compilers_peak_bytes = max(self.compilers_peak_bytes, held)
        return held

    def _keep(self, phase: Phase, size_bytes: int) -> None:
        self.peaks[phase] = max(size_bytes, self.peaks.get(phase, 0))


class Worker:
    """One worker process. Made by `Launcher.start`; a daemon thread of the parent looks after it."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        request: TrialRequest,
        trial_dir: TrialDir,
        *,
        parent_pipe: int,
        memory: Memory,
        family: Family,
        grace_s: float,
    ) -> None:
        self.request, self.trial_dir, self.pid = request, trial_dir, process.pid
        self._process, self._parent_pipe = process, parent_pipe
        self._memory, self._family, self._grace_s = memory, family, grace_s
        self._started_at, self._start = time.time(), time.monotonic()
        self._phase, self._phase_start = Phase.START, self._start
        self._events: list[Event] = []
        self._broken: list[str] = []
        self._offset = 0
        self._result_seen: float | None = None
        self._measured = False
        self._asked: KillReason | None = None
        self._attempt: Attempt | None = None
        self._error: OSError | TunerError | None = None
        self._wake, self._done = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch-{process.pid}", daemon=True)
        self._thread.start()

    @property
    def phase(self) -> Phase:
        """The phase that the worker is in."""
        return self._phase

    @property
    def last_event(self) -> Event | None:
        """The last line that the worker wrote."""
        return self._events[-1] if self._events else None

    def kill(self, reason: KillReason) -> None:
        """End the worker and all it started; `poll` tells when that is done."""
        self._asked = self._asked or reason
        self._wake.set()

    def poll(self) -> Attempt | None:
        """Return what is known once the last process is reaped; None: it still runs.

        Raises:
            MachineError, OSError: it could not be watched, or does not die.
        """
        if not self._done.is_set():
            return None
        if self._attempt is None:
            raise self._error or RuntimeError(f"the watcher of worker {self.pid} died; its traceback is on stderr")
        return self._attempt

    def wait(self, timeout_s: float | None = None) -> Attempt | None:
        """Sleep until the worker is gone, then `poll`."""
        self._done.wait(timeout_s)
        return self.poll()

    def _run(self) -> None:
        try:
            self._attempt = self._watch()
        except (OSError, TunerError) as error:
            self._error = error
        finally:
            # Whatever went wrong above: closing the pipe makes the kernel end the group.
            os.close(self._parent_pipe)
            self._done.set()

    def _watch(self) -> Attempt:
        reason: KillReason | None = None
        try:
            while reason is None and not self._has_exited() and not self._outstays_result():
                self._read_events()
                reason = self._asked or self._judge()
                if reason is None:
                    self._wake.wait(PERIOD_S)
        finally:
            strays = self._end()
        return self._conclude(reason, strays)

    def _has_exited(self) -> bool:
        # Not reaped yet: the number of its group must stay taken until the group is killed.
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _outstays_result(self) -> bool:
        if self._result_seen is None and self.trial_dir.result_path.exists():
            self._result_seen = time.monotonic()
        return self._result_seen is not None and time.monotonic() - self._result_seen > self._grace_s

    def _judge(self) -> KillReason | None:
        if self._result_seen is not None:
            return None
        reason = None if self._measured else self._memory.sample(self._phase)
        if reason is None and time.monotonic() - self._phase_start > self.request.deadlines[self._phase]:
            return KillReason.DEADLINE
        return reason

    def _read_events(self) -> None:
        if self.trial_dir.events_size() <= self._offset:
            return
        batch = self.trial_dir.read_events(self._offset)
        self._offset = batch.offset
        self._events += batch.events
        self._broken += batch.broken
        for event in batch.events:
            if event.event == "phase" and event.phase is not self._phase:
                self._phase, self._phase_start = event.phase, time.monotonic()
            if event.event == "measured":  # what comes now has the phase's deadline for itself, and no memory of it
                self._measured, self._phase_start = True, time.monotonic()

    def _end(self) -> list[str]:
        left = self._family.wait_until_left() if self._has_exited() else []
        self._family.kill_group()
        try:
            self._process.wait(timeout=DIE_S)
        except subprocess.TimeoutExpired as error:
            raise MachineError(f"killed, but still there after {DIE_S:.0f} s: worker {self.pid}") from error
        return left + [name for name in self._family.kill_rest() if name not in left]

    def _conclude(self, reason: KillReason | None, strays: list[str]) -> Attempt:
        self._read_events()
        result = self.trial_dir.read_result(self.request.trial_uuid)
        if not isinstance(result, str) and reason is not KillReason.FOREIGN:
            reason = None  # It was killed a moment after it had finished: what it measured stands.
        code = self._process.returncode
        return Attempt(
            request=self.request,
            exit_code=code if code >= 0 else None,
            exit_signal=-code if code < 0 else None,
            kill_reason=reason,
            result=None if isinstance(result, str) else result,
            result_error=result if isinstance(result, str) and result != RESULT_MISSING else None,
            events=tuple(self._events),
            tail=self._tail(),
            started_at=self._started_at,
            seconds=time.monotonic() - self._start,
            device_peaks=self._memory.peaks,
            compilers_peak_bytes=self._memory.compilers_peak_bytes if self.request.device_type == "cpu" else None,
            foreign=self._memory.foreign,
            strays=tuple(strays),
        )

    def _tail(self) -> str:
        tail = self.trial_dir.tail()
        if not self._broken:
            return tail
        return f"{tail}\nevents.jsonl has {len(self._broken)} lines that are no event, as {self._broken[0]!r}"
