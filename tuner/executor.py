"""Runs trials: submit, poll, cancel. The local one has one slot and one device."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from tuner import device as devices
from tuner.device import BaseLine, CardMeter, DeviceInfo
from tuner.errors import MachineError
from tuner.kinds import KillReason, Phase
from tuner.launcher import Launcher, Worker
from tuner.protocol import Attempt, TrialRequest
from tuner.trial_dir import TrialDir

Handle = str
"""Names a submitted trial: its uuid."""

WAIT_S = 30.0
"""A card may take so long to become clean."""
_CHECK_S = 0.2
"""Between two looks at a card that is not clean."""


class Executor(Protocol):
    """All that a search knows of where its trials run."""

    @property
    def slots(self) -> int:
        """Trials that run at the same time."""
        ...

    def submit(self, request: TrialRequest, trial_dir: TrialDir) -> Handle:
        """Take a trial; at most `slots` may be in flight."""
        ...

    def poll(self) -> list[Attempt]:
        """Return the trials that ended since the last call; never sleeps."""
        ...

    def cancel(self, handle: Handle) -> None:
        """End a trial; `poll` still gives its attempt."""
        ...

    def phases(self) -> Mapping[Handle, Phase]:
        """Return the phase that each running trial is in."""
        ...


@dataclass(slots=True)
class _Trial:
    """A trial in flight: waits for the device, runs, then waits for the device to be as before."""

    request: TrialRequest
    trial_dir: TrialDir
    submitted_at: float
    since: float
    """Monotonic time at which the present wait began."""
    worker: Worker | None = None
    attempt: Attempt | None = None
    looked: float = 0.0
    cancelled: bool = False


class LocalExecutor:
    """One device of this machine, for one search. A context manager: outside it nothing is held."""

    slots = 1

    def __init__(
        self,
        launcher: Launcher,
        device: DeviceInfo,
        *,
        t_bytes: int | None = None,
        shared_card: bool = False,
        wait_s: float = WAIT_S,
        command: Sequence[str] | None = None,
        lock_folder: Path | None = None,
    ) -> None:
        """Hold nothing yet.

        Args:
            t_bytes: T of the card at the start; None: a desktop that grows lowers no limit.
            shared_card: others may be on the card.
            wait_s: what a card may take to become clean.
            command: run instead of the worker, with the trial's folder behind it.
            lock_folder: see `card_lock`.
        """
        self._launcher, self._device, self._shared_card = launcher, device, shared_card
        self._t_bytes = t_bytes
        self._wait_s, self._command, self._lock_folder = wait_s, command, lock_folder
        self._trial: _Trial | None = None
        self._start: BaseLine | None = None
        self._held = ExitStack()

    def __enter__(self) -> Self:
        """Lock the card and read its base line.

        Raises:
            MachineError: another search holds it, or somebody computes on it.
        """
        if self._device.uuid is None:
            return self
        with ExitStack() as stack:
            stack.enter_context(devices.card_lock(self._device.uuid, self._lock_folder))
            self._start = devices.read_base_line(self._device.uuid)
            others = devices.name_processes(self._start.compute.values())
            if others and not self._shared_card:
                raise MachineError(f"somebody else computes on {self._device.name}: {others}")
            self._held = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """End what still runs and give the card back."""
        try:
            if self._trial is not None and self._trial.worker is not None:
                self._trial.worker.kill(KillReason.CANCELLED)
                self._trial.worker.wait()
        finally:
            self._trial = None
            self._held.close()

    def submit(self, request: TrialRequest, trial_dir: TrialDir) -> Handle:
        """Take a trial and start it as soon as the device is clean."""
        if self._trial is not None:
            raise RuntimeError("the slot is taken")
        trial = _Trial(request, trial_dir, time.time(), time.monotonic())
        trial.attempt = self._advance(trial)
        self._trial = trial
        return request.trial_uuid

    def poll(self) -> list[Attempt]:
        """Return the trial that ended, if it did.

        Raises:
            MachineError: the device does not answer, or a worker does not die.
        """
        if self._trial is None or (attempt := self._advance(self._trial)) is None:
            return []
        self._trial = None
        return [attempt.model_copy(update={"shared_card": self._shared_card})]

    def cancel(self, handle: Handle) -> None:
        """End a trial; `poll` still gives its attempt."""
        if self._trial is None or self._trial.request.trial_uuid != handle:
            return
        self._trial.cancelled = True
        if self._trial.worker is not None:
            self._trial.worker.kill(KillReason.CANCELLED)

    def phases(self) -> Mapping[Handle, Phase]:
        """Return the phase that the running trial is in."""
        if self._trial is None or self._trial.worker is None:
            return {}
        return {self._trial.request.trial_uuid: self._trial.worker.phase}

    def _advance(self, trial: _Trial) -> Attempt | None:
        if trial.worker is None:
            return trial.attempt or self._try_launch(trial)
        if trial.attempt is None:
            trial.attempt, trial.since = trial.worker.poll(), time.monotonic()
        return None if trial.attempt is None else self._hand_over(trial, trial.attempt)

    def _try_launch(self, trial: _Trial) -> Attempt | None:
        if trial.cancelled:
            return _not_launched(trial, KillReason.CANCELLED, None)
        if self._device.uuid is None or self._start is None:
            self._launch(trial, trial.request, None)
            return None
        if self._must_pause(trial):
            return None
        base = devices.read_base_line(self._device.uuid)
        drift = devices.compare(self._start, base)
        if drift.clean or self._shared_card:
            request = self._lowered(trial.request, drift.graphics_bytes)
            request = request.model_copy(update={"base_line_bytes": base.held_bytes})
            self._launch(trial, request, CardMeter(self._device.uuid, base, ignore_others=self._shared_card))
            return None
        return _not_launched(trial, KillReason.FOREIGN, drift.foreign) if self._waited(trial) else None

    def _launch(self, trial: _Trial, request: TrialRequest, meter: CardMeter | None) -> None:
        command = [*self._command, str(trial.trial_dir.path)] if self._command else None
        trial.request = request
        trial.worker = self._launcher.start(request, trial.trial_dir, command, meter)

    def _hand_over(self, trial: _Trial, attempt: Attempt) -> Attempt | None:
        """Return the attempt once the device is as before; None: not yet.

        Where the device is not going to be, others came during the trial, and what it came to is
        theirs: in a container their numbers are not ours, and nobody could be told from the worker before.
        """
        if self._device.uuid is None or self._start is None or self._shared_card:
            return attempt
        if attempt.kill_reason is KillReason.CANCELLED:
            return attempt
        if self._must_pause(trial) and not trial.cancelled:
            return None
        drift = devices.compare(self._start, devices.read_base_line(self._device.uuid))
        if drift.clean:
            return attempt
        if not (trial.cancelled or self._waited(trial)):
            return None
        foreign = attempt.foreign or drift.foreign
        return attempt.model_copy(update={"kill_reason": KillReason.FOREIGN, "foreign": foreign})

    def _must_pause(self, trial: _Trial) -> bool:
        now = time.monotonic()
        if now - trial.looked < _CHECK_S:
            return True
        trial.looked = now
        return False

    def _waited(self, trial: _Trial) -> bool:
        return time.monotonic() - trial.since > self._wait_s

    def _lowered(self, request: TrialRequest, taken_bytes: int) -> TrialRequest:
        """Return the request with the limit that is left after a desktop took `taken_bytes`."""
        if self._t_bytes is None or taken_bytes == 0:
            return request
        t_bytes = self._t_bytes - taken_bytes
        # An emulated card gives less than that: its limit is lowered only where the real one has too little left.
        left = devices.limits(
            request.budget_bytes, t_bytes, "cuda", total_bytes=self._device.total_bytes, gives_bytes=t_bytes
        )
        less = max(0, request.limit_bytes - left.limit_bytes)
        cap = None if request.cap_bytes is None else max(0, request.cap_bytes - less)
        return request.model_copy(update={"limit_bytes": request.limit_bytes - less, "cap_bytes": cap})


def _not_launched(trial: _Trial, reason: KillReason, foreign: str | None) -> Attempt:
    return Attempt(
        request=trial.request,
        kill_reason=reason,
        foreign=foreign,
        started_at=trial.submitted_at,
        seconds=time.time() - trial.submitted_at,
    )
