"""D5: integer attributes of modules: one compile per layer, or per step."""

from __future__ import annotations

import pytest

from tests.field_reports.running import LAYER, run, users
from tuner.kinds import Kind
from tuner.outcome import Outcome

pytestmark = pytest.mark.usefixtures("quick_compile")


def test_layers_that_read_their_index_are_counted() -> None:
    found = run(users("indexed"), **LAYER)
    verdict = found.verdict()
    assert (verdict.outcome, verdict.kind) == (Outcome.COMPILE_NOT_APPLIED, Kind.RECOMPILE_LIMIT)
    assert verdict.detail == (
        "compiled 8 of 14 chosen modules, the rest ran eager after the recompile limit was hit at step 1"
    )
    guards = found.result.compile.recompiles
    assert any("layer_idx" in guard and "field_reports/models.py:" in guard for guard in guards)


def test_a_counter_of_calls_names_its_guard() -> None:
    found = run(users("counting"), **LAYER)
    verdict, report = found.verdict(), found.result.compile
    assert (verdict.outcome, verdict.kind) == (Outcome.COMPILE_NOT_APPLIED, Kind.RECOMPILE_LIMIT)
    assert report.recompiles and all("calls" in guard for guard in report.recompiles)


def test_under_fullgraph_it_is_an_error_of_the_compiler() -> None:
    verdict = run(users("counting"), **LAYER, fullgraph=True).verdict()
    assert (verdict.outcome, verdict.kind) == (Outcome.COMPILE_ERROR, Kind.RECOMPILE_LIMIT)


def test_equal_layers_are_healthy() -> None:
    found = run(users("deep"), **LAYER)
    assert found.verdict().outcome is Outcome.OK
    assert (found.result.compile.compiled_modules, found.result.compile.chosen_modules) == (12, 12)
