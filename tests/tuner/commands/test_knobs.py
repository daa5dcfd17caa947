"""``tuner knobs``."""

from __future__ import annotations

import pytest

from strategies.registry import KNOBS
from strategies.spelling import spell
from tests.tuner.commands.made import call
from tuner.commands import knobs
from tuner.errors import WrongInput


def test_every_knob_is_listed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    assert call(knobs) == 0
    out = capsys.readouterr().out
    for knob in KNOBS:
        row = next(line for line in out.splitlines() if line.startswith(f"{knob.name} "))
        assert spell(knob.baseline) in row and knob.stage.name.lower() in row
    assert "max-autotune*" in out and "minutes" in out
    assert "decided by the workload" in out


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: knob.name)
def test_every_value_is_explained(knob: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(knobs, "--explain", knob.name) == 0  # type: ignore[attr-defined]
    out = " ".join(capsys.readouterr().out.split())
    for value in knob.values:  # type: ignore[attr-defined]
        assert " ".join(knob.explain(value).split()) in out  # type: ignore[attr-defined]
    assert "(baseline)" in out


def test_a_knob_that_is_none() -> None:
    with pytest.raises(WrongInput, match="did you mean 'checkpointing'"):
        call(knobs, "--explain", "checkpoint")
