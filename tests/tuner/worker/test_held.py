"""Growth over settle and steady, judged once for both."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
import torch

from tests.tuner.worker.workloads import measurement, shaped
from tuner.kinds import FailureClass
from tuner.measured import MemoryLedger
from tuner.units import MIB
from tuner.worker.failure import NotWhatItSays
from tuner.worker.held import HeldMemory
from tuner.worker.memory import Memory


class Scripted(Memory):
    """Holds what it is told, in MiB."""

    def __init__(self, mib: Iterable[int], room: int = 1000) -> None:
        super().__init__(torch.device("cpu"))
        self._mib, self._room = iter(mib), room

    def held(self) -> int:
        return next(self._mib) * MIB

    def taken(self, base_line_bytes: int) -> int:
        return 2**40 - self._room * MIB + base_line_bytes


def held(*settle: int, steady: Iterable[int], room: int = 1000) -> HeldMemory:
    """After the steps of settle, and then after each window of ten steps."""
    made = HeldMemory(measurement(shaped()), Scripted(steady, room))
    made.settled([(number, mib * MIB) for number, mib in enumerate(settle, 1)], len(settle))
    return made


def test_a_leak_over_settle_and_steady_says_when_the_limit_is_reached() -> None:
    found = held(100, 140, 180, steady=[580, 980], room=999)
    found.note(10)
    found.note(20)
    with pytest.raises(NotWhatItSays) as caught:
        found.check()
    assert caught.value.failure_class is FailureClass.UNSTABLE
    assert caught.value.detail == (
        "memory rises by 40.0 MiB a step (95 %: 40.0 to 40.0); the limit is reached 24 steps later"
    )
    assert found.m.memory is not None and found.m.memory.growth is not None and found.m.memory.growth.steps == 5


@pytest.mark.parametrize("steady", [[180, 180], [900, 900], [180, 900]])
def test_what_grew_once_passes_and_its_slope_is_kept(steady: list[int]) -> None:
    found = held(180, 180, 180, steady=steady)
    found.m.memory = MemoryLedger(parameters_bytes=7)
    found.note(10)
    found.note(20)
    found.check()
    assert found.m.memory.parameters_bytes == 7 and found.m.memory.growth is not None


def test_too_few_points_tell_nothing() -> None:
    found = held(100, 200, steady=itertools.count(300, 100))
    found.note(1)
    found.check()
    assert found.m.memory == MemoryLedger()
