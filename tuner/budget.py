"""The budget that a study is of, and what the device gives a process now."""

from __future__ import annotations

from tuner import device as devices
from tuner.device import DeviceInfo
from tuner.spec import StudySpec
from tuner.units import GIB


def asked_bytes(spec: StudySpec, device: DeviceInfo) -> int:
    """The budget that the study is of. On a CPU more than there is stands for all there is."""
    if spec.budget_bytes is None:
        return whole_bytes(device)
    return spec.budget_bytes if device.type == "cuda" else min(spec.budget_bytes, whole_bytes(device))


def whole_bytes(device: DeviceInfo) -> int:
    """The budget where none is asked for. On a CPU in whole GiB, so that a study is found again."""
    return device.total_bytes if device.type == "cuda" else max(GIB, device.total_bytes // GIB * GIB)


def given_bytes(device: DeviceInfo) -> int:
    """T: what the device gives a process now."""
    if device.uuid is None:
        return devices.available_bytes()
    base = devices.read_base_line(device.uuid)
    # The driver's own share lies outside what CUDA reports as total; what people see does not.
    others = sum(p.used_bytes or 0 for p in base.processes)
    return device.total_bytes - others
