"""``tuner report``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.tuner.commands.made import call, fill
from tests.tuner.made import compiled, ran, record_of, study_of
from tuner.commands import report
from tuner.errors import WrongInput
from tuner.outcome import Outcome

KEPT = Path(__file__).parents[3] / "studies" / "records"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_latest_study_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path, [record_of(number=0, source="reference: baseline")])
    assert call(report) == 0
    out = capsys.readouterr().out
    assert out.startswith("Fastest of what fits in 24.00 GiB: baseline") and "winner, also reference baseline" in out


def test_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = study_of("other", key="another key")
    fill(tmp_path, [record_of(Outcome.OOM, number=0)], [study_of(), other])
    assert call(report, "--json", "--study", "s") == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["study"], data["exit_code"], data["winner"], data["outcomes"]) == ("s", 6, None, {"oom": 1})
    assert call(report, "--json") == 0
    assert json.loads(capsys.readouterr().out)["launches"] == 0, "records of another key are not its own"


@pytest.mark.parametrize("database", sorted(KEPT.glob("*/tuner.db")), ids=lambda path: path.parent.name)
def test_records_from_before_can_be_read(database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "kept.db"
    shutil.copy(database, copy)
    assert call(report, "--json", "--storage", f"sqlite:///{copy}") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["winner"]["outcome"] == "ok" and data["proved"] and data["launches"] > 0


def test_a_planned_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path, [ran({}, 1000.0, number=0), compiled({"mode": "default"}, 2500.0, 60.0, number=1)])
    assert call(report, "--json") == 0
    assert json.loads(capsys.readouterr().out)["winner"]["trial"] == 1
    assert call(report, "--json", "--train-steps", "100") == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["winner"]["trial"], data["train_steps"]) == (0, 100)
    assert call(report, "--json") == 0
    assert json.loads(capsys.readouterr().out)["winner"]["trial"] == 1, "nothing is remembered"


@pytest.mark.parametrize("given", ["0", "-1", "2.5", "many"])
def test_a_run_of_no_steps_is_wrong_input(given: str, tmp_path: Path) -> None:
    fill(tmp_path, [record_of()])
    with pytest.raises(WrongInput, match="train-steps: must be a whole number of 1 or more"):
        call(report, "--train-steps", given)
