"""Opening the database that a command reads."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tuner.commands.made import fill
from tests.tuner.made import study_of
from tuner.commands.common import NO_STUDY, open_records, pick_study, studies_folder
from tuner.errors import WrongInput

ROOT = Path(__file__).parents[3]


def options(**given: str | None) -> argparse.Namespace:
    return argparse.Namespace(**{"storage": None, "study": None} | given)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_without_a_database_one_sentence_and_nothing_made(tmp_path: Path) -> None:
    with pytest.raises(WrongInput, match=f"^study: {NO_STUDY}$"):
        open_records(options())
    with pytest.raises(WrongInput, match="there is no database"):
        open_records(options(storage="sqlite:///other.db"))
    assert list(tmp_path.iterdir()) == []


def test_the_latest_study_unless_one_is_named(tmp_path: Path) -> None:
    fill(tmp_path, [], [study_of("first"), study_of("second")])
    storage, records = open_records(options())
    assert pick_study(records, None).name == "second"
    assert pick_study(records, "first").name == "first"
    with pytest.raises(WrongInput, match=r"study: must be in this database, not 'frist' .*did you mean 'first'"):
        pick_study(records, "frist")
    assert studies_folder(storage) == tmp_path / "studies"
    storage.close()


def test_a_database_without_a_study(tmp_path: Path) -> None:
    fill(tmp_path, [], [study_of()])
    storage, records = open_records(options(storage="sqlite:///studies/tuner.db"))
    with records.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM tuner_study")
    for name in (None, "s"):
        with pytest.raises(WrongInput, match=NO_STUDY):
            pick_study(records, name)
    storage.close()


@pytest.mark.parametrize("command", ["report", "export", "dashboard", "doctor", "knobs", "studies", "clean"])
def test_the_parser_of_a_command_loads_nothing_heavy(command: str) -> None:
    code = (
        f"import argparse, sys, tuner.commands.{command} as c\n"
        "c.add_arguments(argparse.ArgumentParser())\n"
        "heavy = {'torch', 'optuna', 'sqlalchemy', 'rich', 'pydantic', 'yaml', 'numpy'} & set(sys.modules)\n"
        "assert c.HELP and not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize(
    "module", ["report", "report_view", "export", "dashboard", "check", "progress", "studies_view"]
)
def test_what_the_commands_call_never_loads_torch(module: str) -> None:
    code = f"import sys, tuner.{module}\nassert not {{'torch', 'transformers', 'peft'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
