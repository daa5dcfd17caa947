"""D1: compiled, checkpointed layers may need more than the same layers in eager: pairs, and peaks by part."""

from __future__ import annotations

import pytest

from tests.field_reports.running import run, users
from tests.tuner.searching import Bench, End, bench
from tuner.errors import ExitCode
from tuner.outcome import Outcome
from tuner.protocol import TrialRequest
from tuner.worker.memory import Memory

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


def test_forward_backward_and_update_have_peaks_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    # One step of two micro-batches: what came before, then forward and backward of each, then the update.
    parts = iter([9000, 300, 700, 400, 600, 500])
    monkeypatch.setattr(Memory, "part", lambda _: next(parts))
    found = run(users("plain"), micro_batch=4, checkpointing="every-block")
    ledger = found.result.memory
    assert ledger is not None
    assert (ledger.forward_peak_bytes, ledger.backward_peak_bytes, ledger.update_peak_bytes) == (400, 700, 500)
    assert ledger.parameters_bytes and ledger.gradients_bytes and ledger.optimizer_state_bytes
    assert found.verdict().outcome is Outcome.OK
