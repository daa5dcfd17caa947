"""A search in this process whose trials are answered by a formula: no processes, and time that a test can turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import pytest

from strategies.knob import Strategy
from tests.fakes import landscape
from tests.fakes.tuner_with_trainer import HEALTHY
from tuner import bench as benches
from tuner import check, search, session
from tuner.chooser import Chooser
from tuner.executor import Handle
from tuner.kinds import KillReason, Phase
from tuner.outcome import Outcome
from tuner.protocol import Attempt, Event, TrialRequest, TrialResult
from tuner.record import StudyRecord, TrialRecord
from tuner.search import SearchEnd
from tuner.session import SearchSession, open_search
from tuner.space import describe
from tuner.spec import StudySpec
from tuner.trial_dir import TrialDir


@dataclass(frozen=True)
class End:
    """How a trial ends."""

    seconds: float = 10.0
    scale: float = 1.0
    """Of the formula's throughput."""
    failure: tuple[str, str] | None = None
    """Class and phase."""
    gradient: tuple[float, float] | None = None
    """Of the first step; None: as in every other."""
    crash: bool = False
    foreign: bool = False
    deadline: bool = False
    """Killed at the deadline of `load`."""
    result: dict[str, Any] = field(default_factory=dict)
    """Fields of the result beside the formula's."""


Answer = Callable[[TrialRequest, bool], End | None]
"""From a request, and whether it is a proof, to its end; None: as the formula says."""


class Clock:
    """Unix time as the chooser sees it; stands still unless a trial runs."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeExecutor:
    """One slot; a second passes with each poll."""

    answer: Answer
    clock: Clock
    slots: int = 1
    requests: list[tuple[TrialRequest, TrialDir]] = field(default_factory=list)
    running: tuple[TrialRequest, End, float] | None = None
    cancelled: bool = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, request: TrialRequest, trial_dir: TrialDir) -> Handle:
        assert self.running is None
        self.requests.append((request, trial_dir))
        end = self.answer(request, trial_dir.path.name.startswith("proof")) or End()
        self.running, self.cancelled = (request, end, self.clock.now), False
        return request.trial_uuid

    def poll(self) -> list[Attempt]:
        if self.running is None:
            return []
        request, end, since = self.running
        if not self.cancelled and self.clock.now - since < end.seconds:
            self.clock.now += 1
            return []
        self.running = None
        reason = KillReason.CANCELLED if self.cancelled else KillReason.FOREIGN if end.foreign else None
        reason = reason or (KillReason.DEADLINE if end.deadline else None)
        ran = reason is None and not end.crash
        fields: dict[str, Any] = {"foreign": "4711 train.py"} if end.foreign else {}
        return [
            Attempt(
                request=request,
                exit_code=None if reason else 3 if end.crash else 0,
                kill_reason=reason,
                result=_result(request, end) if ran else None,
                started_at=since,
                seconds=self.clock.now - since,
                events=(Event(time=since, event="phase", phase=Phase.LOAD),) if end.deadline else (),
                **fields,
            )
        ]

    def cancel(self, handle: Handle) -> None:
        self.cancelled = True

    def phases(self) -> Mapping[Handle, Phase]:
        return {} if self.running is None else {self.running[0].trial_uuid: Phase.LOAD}


def _result(request: TrialRequest, end: End) -> TrialResult:
    fields = landscape.result(request.strategy, request.limit_bytes, end.scale, end.failure)
    if "parity" in fields:
        fields["parity"] |= {"with_dropout": request.workload.dropout > 0}
        fields["parity"] |= {"gradient": end.gradient} if end.gradient else {}
    if request.twin is not None and end.failure is None:
        fields |= {"throughput": None, "twin_parity": landscape.parity(), "layers": 2}
    return TrialResult.model_validate({"trial_uuid": request.trial_uuid} | fields | end.result)


class Heard:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.begun: list[tuple[int | str, str, str]] = []
        self.records: list[TrialRecord] = []
        self.best: list[TrialRecord | None] = []
        self.messages: list[str] = []
        self.phases: list[Phase] = []

    def started(self, study: StudyRecord, notes: Sequence[str], *_: object) -> None:
        self.messages += notes
        self.study = study

    def trial_started(self, number: int | str, strategy: Strategy, source: str) -> None:
        self.begun.append((number, describe(strategy), source))

    def phase(self, phase: Phase, note: str | None = None) -> None:
        self.phases.append(phase)

    def trial_finished(self, record: TrialRecord, best: TrialRecord | None, seconds_left: float) -> None:
        self.records.append(record)
        self.best.append(best)

    def message(self, text: str) -> None:
        self.messages.append(text)

    def finished(self, text: str) -> None:
        self.messages.append(text)

    @property
    def sources(self) -> list[str]:
        """Who proposed each launch, without the kind."""
        return [source.rpartition(": ")[2] for _, _, source in self.begun]

    @property
    def strategies(self) -> list[str]:
        return [strategy for _, strategy, _ in self.begun]

    @property
    def outcomes(self) -> list[Outcome]:
        return [record.outcome for record in self.records]

    @property
    def roles(self) -> list[str]:
        return [record.role for record in self.records]


@dataclass
class Searched:
    """A finished search and what was seen of it."""

    end: SearchEnd
    heard: Heard
    session: SearchSession
    executor: FakeExecutor


class Bench:
    """Searches in one working directory, one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.clock = Clock()
        self.heard = Heard()

    @contextmanager
    def open(
        self, answer: Answer = lambda *_: None, stopped: Callable[[], bool] = lambda: False, **spec: Any
    ) -> Iterator[tuple[SearchSession, FakeExecutor]]:
        """Open a search on the CPU with 1 GiB; its listener is `heard`, a new one."""
        self.heard, self.clock.now = Heard(), time.time()
        executor = FakeExecutor(answer, self.clock)
        self.monkeypatch.setattr(session, "make_executor", lambda *_: executor)
        self.monkeypatch.setattr(session, "Chooser", partial(Chooser, clock=self.clock))
        self.monkeypatch.setattr(search, "POLL_SECONDS", 0)
        asked = StudySpec.model_validate({"device": "cpu", "budget_gb": 1, "time_budget": "20m"} | spec)
        with open_search(asked, {}, self.heard, stopped) as opened:
            yield opened, executor

    def run(self, answer: Answer = lambda *_: None, **spec: Any) -> Searched:
        """Search to the end."""
        with self.open(answer, **spec) as (opened, executor):
            return Searched(opened.search.run(), self.heard, opened, executor)


@pytest.fixture
def bench(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """An empty working directory on a machine that can do everything."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(check, "ask_child", lambda *_: HEALTHY)
    return Bench(monkeypatch)


def opened_bench(
    environment: Mapping[str, str] | None = None, heard: Heard | None = None, **spec: Any
) -> AbstractContextManager[benches.Bench]:
    """Open what a search is opened on; on the CPU unless said."""
    return benches.open_bench(StudySpec.model_validate({"device": "cpu"} | spec), environment or {}, heard or Heard())
