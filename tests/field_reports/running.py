"""One trial as the worker runs it, in this process, up to what the parent makes of it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from tests.field_reports import models
from tests.tuner.worker.workloads import measurement, shaped
from tuner.measured import Parity
from tuner.outcome import Verdict, classify
from tuner.protocol import Attempt, Event, TrialResult
from tuner.worker.__main__ import run_to_end
from tuner.worker.measure import Trial
from tuner.workload import ModelKind, Workload

LAYER = {"mode": "default", "scope": "layer"}
WHOLE = {"mode": "default", "scope": "whole"}


def users(function: str, **changes: Any) -> Workload:
    """A workload of a model from a function of `models.py`."""
    made = shaped(model=f"{models.__file__}:{function}", model_kind=ModelKind.FUNCTION, **changes)
    return made.model_copy(update={"config": None})


@dataclass
class Ran:
    """A trial that has come to its end."""

    trial: Trial
    attempt: Attempt

    @property
    def result(self) -> TrialResult:
        assert self.attempt.result is not None
        return self.attempt.result

    def verdict(self, reference: Parity | None = None, tail: str = "") -> Verdict:
        """What the parent decides; `tail`: what the worker's log says."""
        return classify(self.attempt.model_copy(update={"tail": tail}), reference=reference)


def run(workload: Workload, steady_steps: int | None = None, **strategy: Any) -> Ran:
    """Run a trial; what it raises becomes its failure, as in the worker's `main`.

    Args:
        steady_steps: at least so many; where lengths vary, settle meets as many batches before.
    """
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    events: list[Event] = []
    made = measurement(workload, events, **{"micro_batch": 8} | strategy)
    if steady_steps is not None:
        made.request = made.request.model_copy(update={"steady_steps": steady_steps})
    trial, started = Trial(made), time.time()
    result = run_to_end(trial, made)
    if made.health is not None:
        made.health.close()
    seconds = time.time() - started
    attempt = Attempt(
        request=made.request, exit_code=0, result=result, events=tuple(events), started_at=started, seconds=seconds
    )
    return Ran(trial, attempt)


def line_of(mark: str) -> str:
    """``file:line`` of the line of `models.py` that ends with the comment `mark`."""
    with open(models.__file__) as file:
        number = next(n for n, line in enumerate(file, 1) if line.rstrip().endswith(f"# {mark}"))
    return f"{models.__file__}:{number}"
