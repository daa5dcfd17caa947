"""The device of a study: what it is, who is on it, is it clean. Neither torch nor CUDA is touched."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from tuner import host, nvml
from tuner.card_lock import card_lock
from tuner.host import available_bytes, worker_threads
from tuner.limits import DeviceType, Limits, cap, limits
from tuner.nvml import Card, CardProcess
from tuner.units import MIB, format_gib

__all__ = [
    "BaseLine",
    "CardMeter",
    "DeviceInfo",
    "Drift",
    "Limits",
    "available_bytes",
    "cap",
    "card_lock",
    "check_clean",
    "compare",
    "cpu_device",
    "limits",
    "list_cards",
    "name_processes",
    "processes",
    "read_base_line",
    "used_bytes",
    "worker_threads",
]

TOLERATED_BYTES = 256 * MIB
"""Growth that is no reason to wait: a driver's own buffers come and go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """What a study runs on."""

    uuid: str | None
    """None on a CPU."""
    name: str
    type: DeviceType
    total_bytes: int
    """From NVML, until the check's child has told what CUDA reports (`told`)."""
    driver: str | None = None
    multiprocessors: int | None = None

    def told(self, *, total_bytes: int | None, multiprocessors: int | None) -> DeviceInfo:
        """Return the same device with what only CUDA knows."""
        return replace(self, total_bytes=total_bytes or self.total_bytes, multiprocessors=multiprocessors)


@dataclass(frozen=True, slots=True)
class BaseLine:
    """What was in use on a card while nothing of ours was on it."""

    used_bytes: int
    processes: tuple[CardProcess, ...] = ()
    held_bytes: int = 0
    """`used_bytes` without the driver's own share: total less free, as CUDA counts."""

    @property
    def graphics_bytes(self) -> int:
        """What a desktop's processes hold, as far as the driver tells."""
        return sum(process.used_bytes or 0 for process in self.processes if process.graphics)

    @property
    def compute(self) -> dict[int, CardProcess]:
        """The compute processes, by number."""
        return {process.pid: process for process in self.processes if not process.graphics}


@dataclass(frozen=True, slots=True)
class Drift:
    """How a card differs from its base line."""

    graphics_bytes: int
    """What a desktop took since: lowers T, and is no reason to wait."""
    foreign_bytes: int
    """Memory of compute processes, or without a visible owner."""
    foreign: str
    """Whose it is, for a person."""

    @property
    def clean(self) -> bool:
        """May a trial start?"""
        return self.foreign_bytes <= TOLERATED_BYTES


def list_cards() -> list[DeviceInfo]:
    """Return the CUDA cards of this machine; none where there is no driver."""
    return [
        DeviceInfo(uuid=card.uuid, name=card.name, type="cuda", total_bytes=card.total_bytes, driver=card.driver)
        for card in nvml.list_cards()
    ]


def cpu_device() -> DeviceInfo:
    """Return the processor as a device."""
    return DeviceInfo(uuid=None, name=host.processor_name(), type="cpu", total_bytes=host.total_bytes())


def used_bytes(uuid: str) -> int:
    """Return what NVML counts as used on a card; an idle one has some, the driver's own."""
    return Card(uuid).used_bytes()


def processes(uuid: str) -> list[CardProcess]:
    """Return who is on a card."""
    return Card(uuid).processes()


def read_base_line(uuid: str) -> BaseLine:
    """Return what is in use on a card now."""
    card = Card(uuid)
    return BaseLine(card.used_bytes(), tuple(card.processes()), card.held_bytes())


def compare(start: BaseLine, now: BaseLine) -> Drift:
    """Return what came on a card between two base lines, and whose it is."""
    graphics = max(0, now.graphics_bytes - start.graphics_bytes)
    foreign = max(0, now.used_bytes - start.used_bytes - graphics)
    known = start.compute
    new = [
        p for p in now.compute.values() if p.pid not in known or (p.used_bytes or 0) > (known[p.pid].used_bytes or 0)
    ]
    names = name_processes(new) or "no visible owner"
    return Drift(graphics, foreign, f"{format_gib(foreign)} more in use than at the start: {names}")


def name_processes(found: Collection[CardProcess]) -> str:
    """Return ``4711 python (3.00 GiB), …`` for a person; empty for nobody."""
    return ", ".join(f"{process.pid} {process.name} ({format_gib(process.used_bytes)})" for process in found)


def check_clean(uuid: str, start: BaseLine, wait_s: float, sleep: Callable[[float], None] = time.sleep) -> Drift:
    """Wait until a card is clean again, at most `wait_s`; the answer says whether it is."""
    deadline = time.monotonic() + wait_s
    while not (drift := compare(start, read_base_line(uuid))).clean and time.monotonic() < deadline:
        sleep(0.1)
    return drift


class CardMeter:
    """Measures one trial: the card above the base line that was read right before it."""

    def __init__(self, uuid: str, base: BaseLine, *, ignore_others: bool = False) -> None:
        """`ignore_others`: the card is shared, and `foreign` names nobody."""
        self._card, self._base, self._ignore_others = Card(uuid), base, ignore_others
        self._graphics_bytes = 0

    def used_bytes(self) -> int:
        """Return what is in use above the base line, what a desktop took since left out."""
        return max(0, self._card.used_bytes() - self._base.used_bytes - self._graphics_bytes)

    def foreign(self, own: Collection[int]) -> str | None:
        """Name compute processes that came during the trial and are not `own`; None: none is seen.

        Where NVML counts processes otherwise than we do (in a container), nobody can be told from
        the worker: then the base line after the trial decides.
        """
        now = BaseLine(0, tuple(self._card.processes()))
        self._graphics_bytes = max(0, now.graphics_bytes - self._base.graphics_bytes)
        new = [process for pid, process in now.compute.items() if pid not in self._base.compute]
        if self._ignore_others or not any(process.pid in own for process in new):
            return None
        others = [p for p in new if p.pid not in own and (p.used_bytes is None or p.used_bytes > TOLERATED_BYTES)]
        return name_processes(others) or None
