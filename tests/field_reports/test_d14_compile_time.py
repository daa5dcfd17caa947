"""D14: what compiling takes stands beside the throughput, never in it, and has a deadline of its own."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import nn

from tests.field_reports.running import LAYER, run, users
from tuner.kinds import Phase
from tuner.launcher import default_deadlines
from tuner.outcome import Outcome

SLOW_SECONDS = 2.0


@pytest.fixture
def slow_compile(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A compiler that takes two seconds for each graph; returns a list that has an entry for each."""
    compile_in_place, graphs = nn.Module.compile, list[int]()
    trace_alone = torch._dynamo.lookup_backend("aot_eager")

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        time.sleep(SLOW_SECONDS)
        graphs.append(1)
        return trace_alone(graph, inputs)

    def slow(module: nn.Module, *, mode: str, **options: Any) -> None:
        compile_in_place(module, backend=backend, **options)

    monkeypatch.setattr(nn.Module, "compile", slow)
    return graphs


def test_equal_layers_are_compiled_once_and_not_in_the_throughput(slow_compile: list[int]) -> None:
    found = run(users("deep"), **LAYER)
    measured, report = found.result.throughput, found.result.compile
    assert found.verdict().outcome is Outcome.OK and measured is not None
    assert len(slow_compile) == report.graphs == 1, "twelve equal layers are one graph"
    assert report.compile_seconds >= SLOW_SECONDS
    assert measured.step_seconds < SLOW_SECONDS / 2
    assert measured.tokens_per_s > measured.tokens_per_step / (SLOW_SECONDS / 2)


def test_eager_has_none() -> None:
    assert run(users("deep")).result.compile.compile_seconds == 0


def test_compiling_has_a_deadline_of_its_own() -> None:
    deadlines = default_deadlines(600)
    assert (deadlines[Phase.FIRST_STEP], deadlines[Phase.STEADY]) == (180, 300)
