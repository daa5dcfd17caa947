"""What is held between the steps, from `settle` to the end of `steady`: it must not keep rising."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.kinds import FailureClass
from tuner.measured import Growth, MemoryLedger
from tuner.worker.failure import NotWhatItSays
from tuner.worker.growth import Held, growth_of, growth_words, steps_left, still_rises
from tuner.worker.measurement import Measurement
from tuner.worker.memory import Memory


class HeldMemory:
    """Keeps what is held after steps that compiled nothing more, and judges it. Asked outside timed windows only."""

    def __init__(self, m: Measurement, memory: Memory) -> None:
        self.m, self.memory = m, memory
        self._points: list[Held] = []
        self._before = 0
        """Steps that had been run when `steady` began."""

    def settled(self, points: Sequence[Held], steps: int) -> None:
        """Begin with what `settle` showed; `steps` were run in it, those that were looked at included."""
        self._points, self._before = list(points), steps

    def note(self, step: int) -> None:
        """Read what is held after so many steps of `steady`."""
        if (held := self.memory.held()) is not None:
            self._points.append((self._before + step, held))

    def check(self) -> None:
        """Keep the growth in the ledger.

        Raises:
            NotWhatItSays: memory still rises.
        """
        growth = growth_of(self._points)
        self.m.memory = (self.m.memory or MemoryLedger()).model_copy(update={"growth": growth})
        if growth is not None and still_rises(self._points, self.memory.rises_bytes):
            raise NotWhatItSays(FailureClass.UNSTABLE, None, self._words(growth))

    def _words(self, growth: Growth) -> str:
        """Return the rise, and how long it can last: a measurement that is too short would have passed."""
        request = self.m.request
        taken = self.memory.taken(request.base_line_bytes or 0)
        left = None if taken is None else steps_left(growth, request.limit_bytes - taken)
        return growth_words(growth) + ("" if left is None else f"; the limit is reached {left:,} steps later")
