"""A fake `pynvml` with the figures of an idle H200 (docs: 150.75e9 in all, 0.645e9 in use)."""

from __future__ import annotations

import types
from dataclasses import dataclass, field
from typing import Any

import pytest

TOTAL, IDLE = 150_750_000_000, 645_000_000
UUID = "GPU-7d2d4e0c-0000-0000-0000-000000000001"


@dataclass
class Entry:
    pid: int
    usedGpuMemory: int | None


@dataclass
class FakeNvml:
    """What the driver says, to be changed by a test at any time."""

    used: int = IDLE
    compute: list[Entry] = field(default_factory=list)
    graphics: list[Entry] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    broken: bool = False
    mhz: int = 1980
    celsius: int = 35
    milliwatts: int = 120_000
    reasons: int = 0x1
    """Bits of clocks event reasons; idle."""
    violations: dict[int, int] = field(default_factory=lambda: {0: 5_000_000_000, 1: 0})
    """Nanoseconds by policy: power, heat."""
    unknown: set[str] = field(default_factory=set)
    """Functions that this card does not support."""

    def module(self) -> types.ModuleType:
        module = types.ModuleType("pynvml")
        error = type("NVMLError", (Exception,), {})
        functions: dict[str, Any] = {
            "NVMLError": error,
            "NVMLError_LibraryNotFound": type("NVMLError_LibraryNotFound", (error,), {}),
            "NVMLError_DriverNotLoaded": type("NVMLError_DriverNotLoaded", (error,), {}),
            "nvmlMemory_v2": 2,
            "nvmlInit": lambda: None,
            "nvmlSystemGetDriverVersion": lambda: "580.95.05",
            "nvmlDeviceGetCount": lambda: 1,
            "nvmlDeviceGetHandleByIndex": lambda index: ("handle", index),
            "nvmlDeviceGetHandleByUUID": self._by_uuid,
            "nvmlDeviceGetUUID": lambda handle: UUID,
            "nvmlDeviceGetName": lambda handle: b"NVIDIA H200",
            "nvmlDeviceGetMemoryInfo": self._memory,
            "nvmlDeviceGetComputeRunningProcesses": lambda handle: list(self.compute),
            "nvmlDeviceGetGraphicsRunningProcesses": lambda handle: list(self.graphics),
            "nvmlSystemGetProcessName": self._name,
            "NVML_CLOCK_SM": 1,
            "NVML_TEMPERATURE_GPU": 0,
            "NVML_PERF_POLICY_POWER": 0,
            "NVML_PERF_POLICY_THERMAL": 1,
            "nvmlDeviceGetClockInfo": self._question("clock", lambda kind: {1: self.mhz}[kind]),
            "nvmlDeviceGetTemperature": self._question("temperature", lambda sensor: {0: self.celsius}[sensor]),
            "nvmlDeviceGetPowerUsage": self._question("power", lambda: self.milliwatts),
            "nvmlDeviceGetCurrentClocksEventReasons": self._question("event reasons", lambda: self.reasons),
            "nvmlDeviceGetCurrentClocksThrottleReasons": self._question("throttle reasons", lambda: self.reasons),
            "nvmlDeviceGetViolationStatus": self._question(
                "violations", lambda policy: types.SimpleNamespace(violationTime=self.violations[policy])
            ),
        }
        module.__dict__.update(functions)
        self._error = error
        return module

    def _question(self, name: str, answer: Any) -> Any:
        def ask(handle: object, *arguments: Any) -> Any:
            if name in self.unknown:
                raise self._error("Not Supported")
            return answer(*arguments)

        return ask

    def _by_uuid(self, uuid: str) -> tuple[str, int]:
        if uuid != UUID:
            raise self._error("Not Found")
        return ("handle", 0)

    def _memory(self, handle: object, version: int | None = None) -> types.SimpleNamespace:
        if self.broken:
            raise self._error("GPU is lost")
        if version is None:
            return types.SimpleNamespace(total=TOTAL, used=self.used, free=TOTAL - self.used)
        return types.SimpleNamespace(total=TOTAL, reserved=IDLE, used=self.used - IDLE, free=TOTAL - self.used)

    def _name(self, pid: int) -> str:
        if pid not in self.names:
            raise self._error("Not Found")
        return self.names[pid]


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """The fake in place of `pynvml`."""
    fake = FakeNvml()
    monkeypatch.setitem(__import__("sys").modules, "pynvml", fake.module())
    return fake
