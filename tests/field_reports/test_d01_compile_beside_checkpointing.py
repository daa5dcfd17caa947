"""D1: compiled, checkpointed layers may need more than the same layers in eager. The logic of pairs alone."""

from __future__ import annotations

from tests.tuner.searching import Bench, End, bench
from tuner.errors import ExitCode
from tuner.outcome import Outcome
from tuner.protocol import TrialRequest

__all__ = ["bench"]


def test_an_out_of_memory_of_the_whole_model_rules_out_neither_layers_nor_eager(bench: Bench) -> None:
    def answer(request: TrialRequest, _: bool) -> End | None:
        whole = request.strategy["mode"] != "off" and request.strategy["scope"] == "whole"
        return End(failure=("oom", "first_step")) if whole else None

    found = bench.run(answer, trials=20)
    tried = [r for r in found.heard.records if r.role == "search"]
    whole = [r for r in tried if r.strategy["mode"] != "off" and r.strategy["scope"] == "whole"]
    assert whole and {r.outcome for r in whole} == {Outcome.OOM}
    fits = [r.strategy for r in tried if r.outcome is Outcome.OK]
    assert any(s["mode"] != "off" and s["scope"] == "layer" and s["checkpointing"] != "off" for s in fits)
    assert any(s["mode"] == "off" and s["checkpointing"] != "off" for s in fits)
    best = found.heard.best[-1]
    assert found.end.exit_code is ExitCode.DONE and best is not None and best.strategy["scope"] != "whole"
