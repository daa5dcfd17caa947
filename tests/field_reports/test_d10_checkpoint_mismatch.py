"""D10: what is recomputed is not what was computed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.field_reports.running import run, users
from tests.tuner.searching import Bench, End, bench
from tuner.errors import ExitCode
from tuner.kinds import Kind, Phase
from tuner.outcome import Outcome
from tuner.protocol import TrialRequest
from tuner.workload import Lengths

__all__ = ["bench"]
pytestmark = pytest.mark.usefixtures("quick_compile")
AROUND: dict[str, Any] = {"mode": "default", "scope": "mlp", "checkpointing": "every-block"}
"""Checkpointing lies around what is compiled."""


@pytest.mark.parametrize("strategy", [{"checkpointing": "every-block"}, AROUND], ids=["eager", "compiled inside"])
def test_a_mismatch_has_its_kind_and_says_where(strategy: dict[str, Any]) -> None:
    verdict = run(users("changing"), **strategy).verdict()
    assert (verdict.outcome, verdict.kind) == (Outcome.WRONG_RESULT, Kind.CHECKPOINT_MISMATCH)
    assert verdict.phase is Phase.FIRST_STEP and "backward" in verdict.detail


def test_without_checkpointing_the_same_model_is_not_blamed() -> None:
    assert run(users("changing")).verdict().outcome is Outcome.OK


def test_several_shapes_in_one_step_are_no_mismatch() -> None:
    lengths = Lengths(kind="list", max=12, values=(4, 12))
    workload = users("plain", lengths=lengths, batch_size=4)
    reference = run(workload, micro_batch=1).result.parity
    verdict = run(workload, **AROUND, micro_batch=1, dynamic="auto").verdict(reference)
    assert (verdict.outcome, verdict.detail) == (Outcome.OK, "")


def test_a_search_goes_on_with_the_other_scopes(bench: Bench) -> None:
    def answer(request: TrialRequest, _: bool) -> End | None:
        strategy = request.strategy
        around = strategy["checkpointing"] != "off" and strategy["scope"] in ("attention", "mlp")
        return End(failure=("wrong_result", "first_step")) if around else None

    found = bench.run(answer, trials=20)
    bad = [r for r in found.heard.records if r.outcome is Outcome.WRONG_RESULT]
    assert found.end.exit_code is ExitCode.DONE and len(bad) < len(found.heard.records) - 10
    best = found.heard.best[-1]
    assert best is not None and best.outcome is Outcome.OK
