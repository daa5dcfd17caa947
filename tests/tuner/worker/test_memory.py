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
    held = Memory(CPU).held()
    assert held is not None and abs(held - (peaks.device_bytes or 0)) < SIZE
    assert Memory(CPU).graph_pool_bytes() is None


def test_a_kernel_without_the_reset_gives_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    from pathlib import Path

    def refused(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_text", refused)
    assert _take_resident_peak() is None


class FakeCard:
    """What torch.cuda says of a card; `stats` are set by the test, peaks go back to `held` with a reset."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stats = {"num_alloc_retries": 0, "num_ooms": 0}
        self.held, self.resets = 0, 0
        self.segments: list[dict[str, object]] = []
        self.use(0)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "memory_stats", lambda _: dict(self.stats))
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (60, 100))
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self.reset)
        monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda _: self.stats["reserved_bytes.all.peak"])
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: self.held)
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: self.held + 3)
        monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda **_: self.segments)

    def use(self, size: int) -> None:
        """Allocate so much at the peak."""
        self.stats["allocated_bytes.all.peak"] = max(self.stats.get("allocated_bytes.all.peak", 0), size)
        self.stats["reserved_bytes.all.peak"] = max(self.stats.get("reserved_bytes.all.peak", 0), size + 3)

    def reset(self, _: torch.device) -> None:
        self.resets += 1
        self.stats |= {"allocated_bytes.all.peak": self.held, "reserved_bytes.all.peak": self.held + 3}


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> FakeCard:
    return FakeCard(monkeypatch)


def on_card() -> Memory:
    return Memory(torch.device("cuda", 0))


def test_retries_and_out_of_memory_are_those_of_the_phase(card: FakeCard) -> None:
    card.stats |= {"num_alloc_retries": 10, "num_ooms": 20}  # of an earlier trial in this process
    memory = on_card()
    card.use(5)
    card.stats |= {"num_alloc_retries": 13, "num_ooms": 21}
    assert memory.take() == Peaks(allocated_bytes=5, reserved_bytes=8, device_bytes=40, alloc_retries=3, ooms=1)
    card.stats["num_ooms"] = 23
    second = memory.take()
    assert (second.alloc_retries, second.ooms, card.resets) == (0, 2, 2)


def test_parts_have_peaks_of_their_own_and_the_phase_keeps_its_maximum(card: FakeCard) -> None:
    memory = on_card()
    card.use(20)
    assert memory.part() == 20
    card.use(7)
    assert memory.part() == 7 and memory.peak() == 23
    card.use(9)
    assert memory.take().allocated_bytes == 20
    card.use(4)
    assert memory.take().allocated_bytes == 4, "the next phase begins anew"


def test_a_part_of_resident_memory() -> None:
    memory = Memory(CPU)
    memory.take()
    torch.ones(SIZE // 4)
    large, small = memory.part(), memory.part()
    assert large is not None and small is not None and large > small + 0.9 * SIZE
    assert (memory.take().device_bytes or 0) >= large


def test_pools_of_graphs_are_looked_for_where_there_are_any(card: FakeCard) -> None:
    card.segments = [
        {"total_size": 5, "segment_pool_id": (0, 0)},
        {"total_size": 7, "segment_pool_id": (0, 1)},
        {"total_size": 8, "segment_pool_id": (1, 0)},
        {"total_size": 9},
    ]
    memory = on_card()
    assert memory.graph_pool_bytes() == 0
    memory.records_graphs = True
    assert memory.graph_pool_bytes() == 15


def test_beside_graphs_what_is_held_is_what_is_reserved(card: FakeCard) -> None:
    memory = on_card()
    card.held = 11
    assert memory.held() == 11
    memory.records_graphs = True
    assert memory.held() == 14
