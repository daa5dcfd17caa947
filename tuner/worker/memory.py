"""The peaks of one phase: the allocator's on a card, the kernel's count of resident memory on a CPU."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from tuner.worker.growth import ALLOCATED_RISES_BYTES, RESIDENT_RISES_BYTES


@dataclass(frozen=True, slots=True)
class Peaks:
    """The allocator's peaks since the last reset, in bytes; None where there is no caching allocator."""

    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    device_bytes: int | None = None
    """On a card total less free, as this process sees it now: no peak. On a CPU the peak of its resident memory."""
    alloc_retries: int = 0
    ooms: int = 0
    """Out-of-memory errors that the allocator raised, caught ones included."""


class Memory:
    """Reads and resets the peaks of a device, always at the borders of phases.

    Autotuning reads the allocator's peak counter to decide where it may clone arguments
    (torch/_inductor/runtime/triton_heuristics.py), so a reset elsewhere would change what is measured:
    `part` is for steps in which nothing is compiled any more.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.records_graphs = False
        """Set once it is known: only then are there private pools to look for."""
        # The allocator counts for the whole process, in which a twin test runs two trials.
        is_used = device.type == "cuda" and torch.cuda.is_initialized()
        self._retries, self._ooms = self._counts() if is_used else (0, 0)
        self._parts = Peaks()
        """The largest peaks of the parts of this phase."""

    @property
    def rises_bytes(self) -> int:
        """How much a step may leave behind before it counts as rising memory."""
        return ALLOCATED_RISES_BYTES if self.device.type == "cuda" else RESIDENT_RISES_BYTES

    def synchronize(self) -> None:
        """Wait until the device has done all that it was asked to."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def held(self) -> int | None:
        """Return what is held now, in bytes: allocated; reserved beside CUDA graphs; on a CPU resident memory.

        Under replay the allocator sees nothing of what a graph holds but the pool that it reserved.
        """
        if self.device.type != "cuda":
            return _resident("VmRSS")
        read = torch.cuda.memory_reserved if self.records_graphs else torch.cuda.memory_allocated
        return read(self.device)

    def taken(self, base_line_bytes: int) -> int | None:
        """Return what this process takes of the device now; `base_line_bytes`: what others held before it."""
        if self.device.type != "cuda":
            return _resident("VmRSS")
        free, total = torch.cuda.mem_get_info(self.device)
        return max(0, total - free - base_line_bytes)

    def peak(self) -> int | None:
        """Return the phase's peak so far without a reset: reserved on a card, resident on a CPU."""
        if self.device.type != "cuda":
            return _most(_resident("VmHWM"), self._parts.device_bytes)
        if not torch.cuda.is_initialized():
            return None
        return _most(torch.cuda.max_memory_reserved(self.device), self._parts.reserved_bytes)

    def part(self) -> int | None:
        """Return the peak since the last call or the phase's begin, and reset it: allocated, or resident on a CPU.

        The phase keeps its own maximum.
        """
        peaks = self._read_and_reset()
        self._parts = _larger(self._parts, peaks)
        return peaks.allocated_bytes if self.device.type == "cuda" else peaks.device_bytes

    def take(self) -> Peaks:
        """Return the peaks of the phase that ends, and reset them."""
        if self.device.type == "cuda" and not torch.cuda.is_initialized():
            return Peaks()
        peaks = _larger(self._parts, self._read_and_reset())
        self._parts = Peaks()
        if self.device.type != "cuda":
            return peaks
        retries, ooms = self._counts()
        peaks = replace(peaks, alloc_retries=retries - self._retries, ooms=ooms - self._ooms)
        self._retries, self._ooms = retries, ooms
        return peaks

    def _counts(self) -> tuple[int, int]:
        stats = torch.cuda.memory_stats(self.device)
        return int(stats.get("num_alloc_retries", 0)), int(stats.get("num_ooms", 0))

    def graph_pool_bytes(self) -> int | None:
        """Return what the private pools of CUDA graphs have reserved now; None on a CPU.

        The allocator is asked for all of its segments, so only where the strategy records graphs.
        """
        if self.device.type != "cuda":
            return None
        if not self.records_graphs or not torch.cuda.is_initialized():
            return 0
        segments = torch.cuda.memory_snapshot(**_WITHOUT_TRACES)
        return sum(int(s["total_size"]) for s in segments if tuple(s.get("segment_pool_id", (0, 0))) != (0, 0))

    def _read_and_reset(self) -> Peaks:
        if self.device.type != "cuda":
            return Peaks(device_bytes=_take_resident_peak())
        stats = torch.cuda.memory_stats(self.device)
        free, total = torch.cuda.mem_get_info(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        return Peaks(
            allocated_bytes=int(stats.get("allocated_bytes.all.peak", 0)),
            reserved_bytes=int(stats.get("reserved_bytes.all.peak", 0)),
            device_bytes=total - free,
        )


# Since torch 2.12 or so; without it the traces come along, and there are none in `steady`.
_WITHOUT_TRACES = (
    {"include_traces": False} if "include_traces" in inspect.signature(torch.cuda.memory_snapshot).parameters else {}
)


def _most(*sizes: int | None) -> int | None:
    return max((size for size in sizes if size is not None), default=None)


def _larger(one: Peaks, other: Peaks) -> Peaks:
    return Peaks(
        allocated_bytes=_most(one.allocated_bytes, other.allocated_bytes),
        reserved_bytes=_most(one.reserved_bytes, other.reserved_bytes),
        device_bytes=_most(one.device_bytes, other.device_bytes),
    )


def _resident(field: str) -> int | None:
    """Return a figure of this process's resident memory in bytes (proc(5): VmRSS now, VmHWM at its peak)."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    found = re.search(rf"^{field}:\s*(\d+) kB$", status, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _take_resident_peak() -> int | None:
    """Return the peak of resident memory since the last call, and reset it (proc(5): VmHWM, clear_refs).

    None where the kernel does not allow the reset: it would be the peak since the start, and of another phase.
    """
    peak = _resident("VmHWM")
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return peak


def set_cap(cap_bytes: int, device: torch.device) -> None:
    """Limit what the caching allocator may reserve on `device` to `cap_bytes`, from now on."""
    _, total = torch.cuda.mem_get_info(device)
    torch.cuda.set_per_process_memory_fraction(min(1.0, cap_bytes / total), device)
