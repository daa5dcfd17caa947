"""What has been measured of one trial so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from strategies.knob import COMPILE_OFF
from tuner.build import Applied
from tuner.kinds import Flag, Phase, Replay
from tuner.measured import MemoryLedger, Parity, PhaseRecord, Throughput
from tuner.protocol import Event, TrialRequest
from tuner.worker.health import CompileHealth
from tuner.worker.snapshot import History

EventSink = Callable[[Event], None]


@dataclass(slots=True)
class Measurement:
    """What has been measured so far; complete or not, the worker reports it."""

    request: TrialRequest
    emit: EventSink
    phase_started: float
    """Unix time at which the current phase began."""
    phase: Phase = Phase.START
    step: int | None = None
    """The optimizer step of the phase, from 1."""
    phases: list[PhaseRecord] = field(default_factory=list)
    flags: list[Flag] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    throughput: Throughput | None = None
    parity: Parity | None = None
    twin_parity: Parity | None = None
    applied: Applied | None = None
    health: CompileHealth | None = None
    compile_seconds: float = 0.0
    model_seconds: float | None = None
    settle_steps: int = 0
    folder: Path | None = None
    """The trial's, for files of any size; None: nothing is kept."""
    history: History | None = None
    memory: MemoryLedger | None = None
    replay: Replay | None = None
    """What `longest_batch` is replaying."""
    replays: list[Replay] = field(default_factory=list)
    """What it has replayed."""
    peak_replay: Replay | None = None
    detector_seconds: dict[str, float] = field(default_factory=dict)
    """What each detector cost so far, by name."""

    @property
    def compiles(self) -> bool:
        """Does the strategy compile anything?"""
        return self.request.strategy["mode"] != COMPILE_OFF

    @contextmanager
    def detecting(self, detector: str) -> Iterator[None]:
        """Add what is done within to what `detector` costs."""
        started = time.perf_counter()
        try:
            yield
        finally:
            spent = self.detector_seconds.get(detector, 0.0)
            self.detector_seconds[detector] = spent + time.perf_counter() - started
