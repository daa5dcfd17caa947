"""``tuner clean``."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.tuner.commands.made import call, fill
from tests.tuner.made import record_of, study_of
from tests.tuner.trials import result
from tuner.commands import clean
from tuner.records import Records
from tuner.storage import open_storage
from tuner.trial_dir import TrialDir


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    fill(tmp_path, [record_of(number=0)], [study_of("s"), study_of("t")])
    for path in ("s/0/request.json", "t/compile-cache/x.so", "cache/check/y.so", "records/kept.db"):
        file = tmp_path / "studies" / path
        file.parent.mkdir(parents=True)
        file.write_bytes(b"x" * 1000)
    return tmp_path / "studies"


def test_without_yes_it_only_lists(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(clean) == 0
    out = capsys.readouterr().out
    assert (
        "3,000 bytes" in out and "tuner clean --yes" in out and "records" not in out.lower().replace("records stay", "")
    )
    assert (here / "s/0/request.json").exists()


def test_with_yes_files_go_and_records_stay(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(clean, "--yes") == 0
    assert "3,000 bytes (0.00 GiB) in 3 files and folders removed." in capsys.readouterr().out
    left = sorted(
        str(p.relative_to(here)) for p in here.rglob("*") if p.is_file() and not p.name.startswith("tuner.db")
    )
    assert left == ["records/kept.db"]
    with closing(open_storage(None, here.parent)) as storage:
        assert len(Records(storage.engine).for_study("s")) == 1


def test_one_study_alone(here: Path) -> None:
    assert call(clean, "--yes", "--study", "s") == 0
    assert not (here / "s/0").exists()
    assert (here / "t/compile-cache/x.so").exists() and (here / "cache/check/y.so").exists()


def test_a_study_that_is_being_searched_is_left_alone(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(open_storage(None, here.parent)) as storage:
        records = Records(storage.engine)
        held = records.acquire_lease("s")
        assert call(clean, "--yes") == 0
        records.release(held)
    assert "study s is being searched: left alone" in capsys.readouterr().out
    assert (here / "s/0/request.json").exists() and not (here / "t/compile-cache").exists()
    assert (here / "cache/check/y.so").exists()


def test_a_trial_stays_until_its_result_is_in_a_record(here: Path) -> None:
    folder = TrialDir(here / "s" / "0")
    folder.write_result(result("lost"))
    assert call(clean, "--yes") == 0 and folder.result_path.exists()
    fill(here.parent, [record_of(uuid="lost")])
    assert call(clean, "--yes") == 0 and not folder.path.exists()
