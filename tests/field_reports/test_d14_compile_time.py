"""D14: compile seconds stand beside throughput, never in it; what a planned run pays for them decides if asked."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import nn

from tests.field_reports.running import LAYER, run, users
from tests.tuner.made import compiled, ran, study_of
from tuner.break_even import BreakEven
from tuner.kinds import Flag, Phase
from tuner.launcher import default_deadlines
from tuner.outcome import Outcome
from tuner.record import TrialRecord
from tuner.report import summary

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


def test_the_seconds_are_told_by_part(slow_compile: list[int]) -> None:
    report = run(users("deep"), **LAYER).result.compile
    assert report.parts is not None
    # This compiler is AOT autograd's backend, so its two seconds are there.
    assert report.parts.aot_autograd >= SLOW_SECONDS and 0 < report.parts.dynamo < report.compile_seconds
    assert report.parts.dynamo + report.parts.aot_autograd <= report.compile_seconds * 1.1
    assert run(users("deep")).result.compile.parts is None, "eager compiles nothing"


def of_the_report() -> list[TrialRecord]:
    """Its short fine-tune: 48 s eager, 35 s with only the layers compiled, 198 s with the whole model; 100 steps."""
    return [
        ran({}, 500 / 0.48),
        compiled({"mode": "default", "scope": "layer"}, 500 / 0.2, 15.0, Flag.COLD),
        compiled({"mode": "default", "scope": "whole"}, 500 / 0.18, 180.0, Flag.COLD),
    ]


def test_break_even_is_told_beside_throughput() -> None:
    report = summary(study_of(), of_the_report())
    whole, layer = report.winner, next(c for c in report.comparisons if "recipe: layer" in c.labels)
    assert whole is not None and whole.strategy["scope"] == "whole", "by throughput alone"
    assert whole.speed.break_even == BreakEven(steps=600, against="baseline")
    assert layer.speed.break_even == BreakEven(steps=54, against="baseline")


@pytest.mark.parametrize(("steps", "scope"), [(20, None), (100, "layer"), (5000, "layer"), (10_000, "whole")])
def test_the_planned_steps_decide(steps: int, scope: str | None) -> None:
    winner = summary(study_of(), of_the_report(), train_steps=steps).winner
    assert winner is not None
    assert (None if winner.strategy["mode"] == "off" else winner.strategy["scope"]) == scope


def test_the_figures_of_the_report_come_out() -> None:
    report = summary(study_of(), of_the_report(), train_steps=100)
    seconds = {
        line.description: round(100 * 500 / line.speed.run_tokens_per_s)
        for line in (report.winner, *report.comparisons)
        if line is not None and line.speed.run_tokens_per_s
    }
    assert seconds == {"baseline": 48, "mode=default": 198, "mode=default, scope=layer": 35}
