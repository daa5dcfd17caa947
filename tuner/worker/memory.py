"""The peaks of one phase: the allocator's on a card, the kernel's count of resident memory on a CPU."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True, slots=True)
class Peaks:
    """The allocator's peaks since the last reset, in bytes; None where there is no caching allocator."""

    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    device_bytes: int | None = None
    """On a card total less free, as this process sees it now: no peak. On a CPU the peak of its resident memory."""
    alloc_retries: int = 0


class Memory:
    """Reads and resets the peaks of a device, always at the borders of phases.

    Autotuning reads the allocator's peak counter to decide where it may clone arguments
    (torch/_inductor/runtime/triton_heuristics.py), so a reset elsewhere would change what is measured.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._retries = 0

    def synchronize(self) -> None:
        """Wait until the device has done all that it was asked to."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def held(self) -> int | None:
        """Return what the allocator has handed out now; None where there is no caching allocator."""
        return torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else None

    def take(self) -> Peaks:
        """Return the peaks since the last call, and reset them."""
        if self.device.type != "cuda":
            return Peaks(device_bytes=_take_resident_peak())
        if not torch.cuda.is_initialized():
            return Peaks()
        stats = torch.cuda.memory_stats(self.device)
        free, total = torch.cuda.mem_get_info(self.device)
        retries = int(stats.get("num_alloc_retries", 0))
        peaks = Peaks(
            allocated_bytes=int(stats.get("allocated_bytes.all.peak", 0)),
            reserved_bytes=int(stats.get("reserved_bytes.all.peak", 0)),
            device_bytes=total - free,
            alloc_retries=retries - self._retries,
        )
        self._retries = retries
        torch.cuda.reset_peak_memory_stats(self.device)
        return peaks


def _take_resident_peak() -> int | None:
    """Return the peak of resident memory since the last call, and reset it (proc(5): VmHWM, clear_refs).

    None where the kernel does not allow the reset: it would be the peak since the start, and of another phase.
    """
    try:
        status = Path("/proc/self/status").read_text()
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    found = re.search(r"^VmHWM:\s*(\d+) kB$", status, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def set_cap(cap_bytes: int, device: torch.device) -> None:
    """Limit what the caching allocator may reserve on `device` to `cap_bytes`, from now on."""
    _, total = torch.cuda.mem_get_info(device)
    torch.cuda.set_per_process_memory_fraction(min(1.0, cap_bytes / total), device)
