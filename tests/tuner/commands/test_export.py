"""``tuner export``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from strategies.recipes import leanest
from tests.tuner.commands.made import call, fill
from tests.tuner.made import compiled, ran, record_of
from tuner.commands import export
from tuner.errors import WrongInput
from tuner.kinds import Phase
from tuner.outcome import Outcome
from tuner.plan import load_plan

LAYER = {"mode": "default", "scope": "layer"}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_winner_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path, [record_of(number=0), record_of(strategy=LAYER, number=1, tokens_per_s=2000.0)])
    assert call(export, "-o", "best.yaml") == 0
    plan = load_plan(Path("best.yaml"))
    assert plan.trial == 1 and plan.strategy["scope"] == "layer"
    assert "tuner run best.yaml" in capsys.readouterr().out


def test_one_trial_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path, [record_of(number=0), record_of(strategy=LAYER, number=1, tokens_per_s=2000.0)])
    assert call(export, "-o", "-", "--trial", "0") == 0
    assert yaml.safe_load(capsys.readouterr().out)["trial"] == 0
    assert os.listdir(tmp_path) == ["studies"]


@pytest.mark.parametrize(("strategies", "code"), [([dict(r.strategy) for r in leanest("full")], 3), ([LAYER], 6)])
def test_without_a_winner_no_file_and_the_studys_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], strategies: list[dict[str, object]], code: int
) -> None:
    dead = [record_of(Outcome.OOM, s, number=n, phase=Phase.SETTLE) for n, s in enumerate(strategies)]
    fill(tmp_path, dead)
    assert call(export, "-o", "best.yaml") == code
    assert not Path("best.yaml").exists()
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and err.endswith("Nothing was exported.\n")


def test_an_unwritable_folder(tmp_path: Path) -> None:
    fill(tmp_path, [record_of(number=0)])
    with pytest.raises(WrongInput, match=r"none/best\.yaml cannot be written"):
        call(export, "-o", "none/best.yaml")
    with pytest.raises(WrongInput, match="trial: must be a trial of the study, not 7"):
        call(export, "-o", "best.yaml", "--trial", "7")


def test_the_winner_of_a_planned_run(tmp_path: Path) -> None:
    fill(tmp_path, [ran({}, 1000.0, number=0), compiled({"mode": "default"}, 2500.0, 60.0, number=1)])
    assert call(export, "-o", "best.yaml") == 0
    plan = load_plan(Path("best.yaml"))
    assert (plan.trial, plan.measured.break_even_steps, plan.measured.break_even_against) == (1, 200, "baseline")
    assert call(export, "-o", "short.yaml", "--train-steps", "100") == 0
    assert load_plan(Path("short.yaml")).trial == 0
    with pytest.raises(WrongInput, match="train-steps: must be a whole number of 1 or more, not '0'"):
        call(export, "-o", "none.yaml", "--train-steps", "0")
    assert not Path("none.yaml").exists()
