"""The command line: wrong input is one sentence, leaves nothing behind and costs nothing."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.tuner.searching import Bench, bench
from tests.tuner.trials import ROOT
from tuner import cli
from tuner.cli import COMMANDS, main
from tuner.commands import knobs
from tuner.errors import MachineError

__all__ = ["bench"]
SEARCH = ("search", "--device", "cpu")
HEAVY = ("torch", "optuna", "sqlalchemy", "pydantic", "rich", "transformers", "numpy", "yaml")


def test_help_is_light_and_quick() -> None:
    best = 9.9
    for _ in range(5):  # the machine is shared
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "tuner", "--help"], cwd=ROOT, check=True, capture_output=True)
        best = min(best, time.perf_counter() - began)
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "tuner", "--help"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "tuner" in imported and not imported & set(HEAVY)
    assert all(f"    {name}" in done.stdout for name in COMMANDS) and "exit codes:" in done.stdout
    assert best < 0.3


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0 and f"tuner {command}" in capsys.readouterr().out


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit status and the one sentence on stderr."""
    try:
        code = main(arguments)
    except SystemExit as error:  # argparse's own
        assert isinstance(error.code, int)
        code = error.code
    out, err = capsys.readouterr()
    assert out == "" and err.endswith("\n") and err.count("\n") == 1 and "Traceback" not in err, (out, err)
    return code, err.strip()


WRONG = [
    ([], "tuner: the following arguments are required: COMMAND"),
    (["serch"], r"tuner: .*invalid choice: 'serch'.*\(did you mean 'search'\?\)"),
    ([*SEARCH, "--buget-gb", "24"], r"tuner search: --buget-gb is not known \(did you mean '--budget-gb'\?\)"),
    ([*SEARCH, "--budget", "24"], r"tuner search: --budget is not known \(did you mean '--budget-gb'\?\)"),
    ([*SEARCH, "--trials=3", "extra"], "tuner search: extra is not known"),
    ([*SEARCH, "--trials"], "tuner search: argument --trials: expected one argument"),
    ([*SEARCH, "--budget-gb", "0"], "tuner search: budget-gb: must be a positive number of GiB, not '0'"),
    ([*SEARCH, "--budget-gb", "-1"], "tuner search: budget-gb: must be a positive number of GiB, not '-1'"),
    ([*SEARCH, "--budget-gb", "nan"], "tuner search: budget-gb: must be a positive number of GiB, not 'nan'"),
    ([*SEARCH, "--budget-gb", "1e-12"], r"tuner search: budget_gb: must be more than nothing, not 0\.0"),
    (
        [*SEARCH, "--model", "tinny"],
        r"tuner search: model: must be a built-in .*, not 'tinny' \(did you mean 'tiny'\?\)",
    ),
    ([*SEARCH, "--adapter", "loar"], r"tuner search: adapter: must be one of .*, not 'loar' \(did you mean 'lora'\?\)"),
    ([*SEARCH, "--fix", "mod=off"], r"tuner search: knob: must be one of .*, not 'mod' \(did you mean 'mode'\?\)"),
    ([*SEARCH, "--fix", "mode"], "tuner search: fix: must have the form NAME=VALUE, not 'mode'"),
    ([*SEARCH, "--fix", "mode=of"], r"tuner search: mode: must be one of .*, not 'of' \(did you mean 'off'\?\)"),
    ([*SEARCH, "--knob", "scope=layer,hole"], r"tuner search: scope: .*, not 'hole' \(did you mean 'whole'\?\)"),
    ([*SEARCH, "--fix", "optimizer=adamw-8bit-paged"], "tuner search: fix, knob: leave no strategy that can work here"),
    ([*SEARCH, "--spec", "none.yaml"], r"tuner search: spec: none\.yaml cannot be read \(No such file or directory\)"),
    (["search", "--device", "gpu"], "tuner search: device: must be cpu, cuda or cuda:N, not 'gpu'"),
    ([*SEARCH, "--storage", "my.db"], r"tuner search: storage: must be a URL, not 'my\.db' \(did you mean 'sqlite:///"),
    ([*SEARCH, "--study", "a b"], "tuner search: study: must be letters, digits, .*, not 'a b'"),
    ([*SEARCH, "--sampler", "tep"], r"tuner search: sampler: must be one of .*, not 'tep' \(did you mean 'tpe'\?\)"),
    (
        [*SEARCH, "--model", "mine.py:nett"],
        r"tuner search: model: .*/mine\.py must define it, not 'nett' \(did you mean",
    ),
    (["run", "none.yaml"], r"tuner run: plan: none\.yaml cannot be read \(No such file or directory\)"),
]


@pytest.mark.parametrize(("arguments", "says"), WRONG, ids=[" ".join(arguments) or "nothing" for arguments, _ in WRONG])
def test_wrong_input(bench: Bench, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    Path("mine.py").write_text("def net(): ...\n")
    code, err = fails(capsys, *arguments)
    assert code == 2 and re.match(says, err), err
    assert sorted(path.name for path in Path().iterdir()) == ["mine.py"], "nothing half-written"


def test_a_card_that_is_not_there(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.device.list_cards", lambda: [])
    code, err = fails(capsys, "search", "--device", "cuda:0", "--budget-gb", "24")
    assert code == 4 and err.startswith("tuner search: no CUDA card can be seen here") and not any(Path().iterdir())


def test_a_database_of_another_program(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(sqlite3.connect("other.db")) as connection:
        connection.execute("CREATE TABLE songs (name TEXT)")
    before = Path("other.db").read_bytes()
    code, err = fails(capsys, *SEARCH, "--storage", "sqlite:///other.db")
    assert code == 2 and re.fullmatch(r"tuner search: storage: .* belongs to another program \(table 'songs', .*", err)
    assert Path("other.db").read_bytes() == before and [p.name for p in Path().iterdir()] == ["other.db"]


def test_a_file_that_is_no_database(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    Path("notes.txt").write_text("not a database, by far not a database\n" * 9)
    code, err = fails(capsys, *SEARCH, "--storage", "sqlite:///notes.txt")
    assert code == 2 and "is not a SQLite database" in err


def test_a_folder_that_cannot_be_written(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    # Root may write anywhere: a file where the folder would be stops it too.
    Path("studies").write_text("")
    code, err = fails(capsys, *SEARCH)
    assert code == 2 and re.match(r"tuner search: storage: the folder .*/studies cannot be made", err)


def test_a_study_that_was_made_for_something_else(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.run(trials=1, study="mine")
    code, err = fails(capsys, *SEARCH, "--budget-gb", "1", "--study", "mine", "--batch-size", "4")
    assert code == 2 and "'mine' was made with batch_size 8, not 4" in err
    code, err = fails(capsys, *SEARCH, "--budget-gb", "0.5", "--study", "mine")
    assert code == 2 and "'mine' was made with budget 1.0, not 0.5" in err


def test_a_bug_of_ours_names_its_log(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> int:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(knobs, "run", broken)
    code, err = fails(capsys, "knobs")
    found = re.fullmatch(r"tuner knobs: a bug of ours \(ZeroDivisionError\); the traceback is in (\S+)", err)
    assert code == 1 and found
    assert "by zero" in Path(found[1]).read_text()
    Path(found[1]).unlink()


@pytest.mark.parametrize(("error", "code"), [(MachineError("no disk"), 4), (KeyboardInterrupt(), 130)])
def test_errors_become_exit_codes(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def raises(_: object) -> int:
        raise error

    monkeypatch.setattr(knobs, "run", raises)
    assert fails(capsys, "knobs") == (code, "tuner knobs: no disk" if code == 4 else "tuner knobs: interrupted")


def test_a_reader_that_goes_away_is_no_error() -> None:
    done = subprocess.run(
        f"{sys.executable} -m tuner knobs | head -n 1; echo ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.splitlines()[-1] == "0" and done.stderr == ""


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out.startswith("compile-tuner ")
