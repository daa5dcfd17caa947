"""D15: the environment cannot compile. Found before the study: `tests/tuner/test_check.py` has each cause."""

from __future__ import annotations

import pytest

from tests.fakes.tuner_with_trainer import HEALTHY
from tests.tuner.searching import Bench, bench
from tuner import check
from tuner.errors import ExitCode, MachineError
from tuner.machine import CheckItem

__all__ = ["bench"]
BROKEN = CheckItem(name="compile", ok=False, value="InvalidCxxCompiler: /bin/false", advice="install a C++ compiler")


def test_it_is_said_once_and_no_trial_is_spent(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    report = HEALTHY.model_copy(update={"items": (*HEALTHY.items, BROKEN), "compile_seconds": None})
    monkeypatch.setattr(check, "ask_child", lambda *_: report)
    with pytest.raises(MachineError, match=r"nothing can be compiled here: .*/bin/false") as caught:
        bench.run(trials=8)
    assert caught.value.exit_code == ExitCode.MACHINE and bench.heard.begun == []
    eager = bench.run(trials=3, fix={"mode": "off"})
    assert eager.end.exit_code is ExitCode.DONE
    assert all(record.strategy["mode"] == "off" for record in eager.heard.records)
