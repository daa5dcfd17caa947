"""Peaks of a phase, of this process's resident memory."""

from __future__ import annotations

import pytest
import torch

from tuner.worker.memory import Memory, Peaks, _take_resident_peak

CPU = torch.device("cpu")
SIZE = 256 * 2**20


def test_a_peak_belongs_to_its_own_phase() -> None:
    memory = Memory(CPU)
    before = memory.take()
    memory.synchronize()
    held = torch.ones(SIZE // 4)
    del held
    during, after = memory.take(), memory.take()
    assert before.device_bytes is not None and during.device_bytes is not None and after.device_bytes is not None
    assert during.device_bytes > before.device_bytes + 0.9 * SIZE
    assert after.device_bytes < during.device_bytes - 0.9 * SIZE


def test_a_cpu_has_no_caching_allocator() -> None:
    peaks = Memory(CPU).take()
    assert (peaks.allocated_bytes, peaks.reserved_bytes, peaks.alloc_retries) == (None, None, 0)
    assert Memory(CPU).held() is None


def test_a_kernel_without_the_reset_gives_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    from pathlib import Path

    def refused(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_text", refused)
    assert _take_resident_peak() is None


def test_retries_are_those_since_the_last_call(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = {"num_alloc_retries": 3, "allocated_bytes.all.peak": 5, "reserved_bytes.all.peak": 8}
    resets: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda _: stats)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (60, 100))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", resets.append)
    memory = Memory(torch.device("cuda", 0))
    first = memory.take()
    assert first == Peaks(allocated_bytes=5, reserved_bytes=8, device_bytes=40, alloc_retries=3)
    assert memory.take().alloc_retries == 0
    assert len(resets) == 2
