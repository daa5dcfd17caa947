"""NVIDIA's management library: cards, memory in use, processes. Never touches CUDA."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tuner import processes
from tuner.errors import MachineError


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlCard:
    """A card as NVML knows it."""

    uuid: str
    name: str
    total_bytes: int
    """Without the driver's own share; close to what CUDA reports, which alone counts."""
    driver: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CardProcess:
    """A process that holds memory of a card."""

    pid: int
    """As the host counts: in a container it may be nobody here."""
    name: str
    used_bytes: int | None
    """None: the driver does not tell."""
    graphics: bool
    """A desktop's process, one that also computes included."""


_CLOCK_REASONS = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x200: "board_limit",
    0x400: "reliability",
}
"""NVML's bits (nvml.h, nvmlClocksEventReasons). Left out: idle, and clocks that somebody has set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockState:
    """How fast a card runs at this moment, and why no faster. None and missing: this card or driver does not tell."""

    sm_mhz: int | None
    temperature_c: int | None
    power_w: float | None
    """Of the last second, as the driver averages it."""
    reasons: tuple[str, ...]
    violation_ns: dict[str, int]
    """Nanoseconds since the driver was loaded for which power, or heat, held the clocks down."""


def list_cards() -> list[NvmlCard]:
    """Return the cards of this machine, in NVML's order; none where there is no driver.

    Raises:
        MachineError: there is a driver, and it does not answer.
    """
    try:
        nvml = _load()
    except NoDriver:
        return []
    with _said():
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        return [_card(nvml, handle, driver) for handle in handles]


class Card:
    """One card, by its UUID, for as many questions as one likes (a sample of memory takes 6 µs)."""

    def __init__(self, uuid: str) -> None:
        self._nvml = _load()
        with _said():
            self._handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)

    def used_bytes(self) -> int:
        """Return what is in use on the card, the driver's own share included."""
        with _said():
            return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)

    def held_bytes(self) -> int:
        """Return what processes hold of the card: `used_bytes` without the driver's own share."""
        with _said():
            return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle, version=self._nvml.nvmlMemory_v2).used)

    def clocks(self) -> ClockState:
        """Return clock, temperature, power and what holds the clock down."""
        nvml, handle = self._nvml, self._handle
        power_mw = self._told("nvmlDeviceGetPowerUsage", handle)
        bits = self._told("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if bits is None:  # the name of older packages and drivers
            bits = self._told("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        celsius = self._told("nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU)
        if celsius is None:  # the name of newer ones
            celsius = self._told("nvmlDeviceGetTemperatureV", handle, nvml.NVML_TEMPERATURE_GPU)
        violations = {
            name: self._told("nvmlDeviceGetViolationStatus", handle, policy)
            for name, policy in (
                ("power_violation", nvml.NVML_PERF_POLICY_POWER),
                ("thermal_violation", nvml.NVML_PERF_POLICY_THERMAL),
            )
        }
        return ClockState(
            sm_mhz=self._told("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
            temperature_c=celsius,
            power_w=None if power_mw is None else power_mw / 1000,
            reasons=tuple(name for bit, name in _CLOCK_REASONS.items() if (bits or 0) & bit),
            violation_ns={name: int(v.violationTime) for name, v in violations.items() if v is not None},
        )

    def _told(self, function: str, *arguments: Any) -> Any:
        """Return what NVML answers; None: this package, driver or card does not know the question."""
        ask = getattr(self._nvml, function, None)
        try:
            return None if ask is None else ask(*arguments)
        except self._nvml.NVMLError:
            return None

    def processes(self) -> list[CardProcess]:
        """Return who is on the card, each once."""
        with _said():
            compute = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
            graphics = self._nvml.nvmlDeviceGetGraphicsRunningProcesses(self._handle)
        found = {entry.pid: self._process(entry, graphics=False) for entry in compute}
        # A desktop's program that also computes (a browser, say) stands in both lists.
        return list((found | {entry.pid: self._process(entry, graphics=True) for entry in graphics}).values())

    def _process(self, entry: Any, *, graphics: bool) -> CardProcess:
        try:
            name = _text(self._nvml.nvmlSystemGetProcessName(entry.pid))
        except self._nvml.NVMLError:
            name = "a process that is not visible from here"
            if processes.read_stat(entry.pid) is not None:
                name = processes.describe(entry.pid).partition(" ")[2]
        return CardProcess(pid=entry.pid, name=name, used_bytes=entry.usedGpuMemory, graphics=graphics)


class NoDriver(MachineError):
    """There is no NVIDIA driver here."""


def _load() -> Any:
    # Initialised anew each time: NVML only counts, and a process that forgot it gets it back.
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError as error:
        raise MachineError("the package nvidia-ml-py is missing") from error
    try:
        nvml.nvmlInit()
    except (nvml.NVMLError_LibraryNotFound, nvml.NVMLError_DriverNotLoaded) as error:
        raise NoDriver(f"no NVIDIA driver: {error}") from error
    except nvml.NVMLError as error:
        raise MachineError(f"the NVIDIA driver does not answer: {error}") from error
    return nvml


@contextmanager
def _said() -> Iterator[None]:
    nvml = importlib.import_module("pynvml")
    try:
        yield
    except nvml.NVMLError as error:
        raise MachineError(f"the NVIDIA driver does not answer: {error}") from error


def _card(nvml: Any, handle: Any, driver: str) -> NvmlCard:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    return NvmlCard(
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        name=_text(nvml.nvmlDeviceGetName(handle)),
        total_bytes=int(memory.total - memory.reserved),
        driver=driver,
    )


def _text(value: str | bytes) -> str:
    # Old versions of the package give bytes.
    return value.decode() if isinstance(value, bytes) else value
