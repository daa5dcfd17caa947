"""D15: the environment cannot compile, from the start (`tests/tuner/test_check.py` has each cause) or later."""

from __future__ import annotations

import pytest

from tests.fakes.tuner_with_trainer import HEALTHY
from tests.tuner.searching import Bench, End, bench
from tuner import check
from tuner.errors import ExitCode, MachineError
from tuner.machine import CheckItem
from tuner.outcome import Outcome
from tuner.protocol import TrialRequest

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


def test_what_is_lost_in_the_middle_of_a_study_is_said_once_and_charged_to_no_strategy(bench: Bench) -> None:
    launched: list[str] = []

    def answer(request: TrialRequest, _: bool) -> End | None:
        launched.append(request.trial_uuid)
        compiled = request.strategy["mode"] != "off"
        return End(failure=("environment", "first_step")) if compiled and len(launched) > 4 else None

    with pytest.raises(MachineError, match="charged to no strategy") as caught:
        bench.run(answer, trials=12)
    assert caught.value.exit_code == ExitCode.MACHINE and len(launched) == 5
    assert all(record.outcome is Outcome.OK for record in bench.heard.records)
    met = bench.heard.strategies[-1]
    whole = bench.run(trials=20)
    assert whole.end.exit_code is ExitCode.DONE
    assert met in whole.heard.strategies, "what met it is tried again"
