"""``tuner studies``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tuner.commands.made import call, fill
from tests.tuner.made import record_of, study_of
from tuner.commands import studies
from tuner.outcome import Outcome


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")
    records = [record_of(number=0, tokens_per_s=1234.0), record_of(Outcome.OOM, {"mode": "default"}, number=1)]
    fill(tmp_path, records, [study_of("s"), study_of("empty", key="another")])


def test_each_study_has_its_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(studies) == 0
    header, first, second = capsys.readouterr().out.splitlines()
    assert "best so far" in header
    assert first.startswith("s ") and "1 ok, 1 out of memory" in first and "baseline: 1,234 tokens/s" in first
    assert second.startswith("empty ") and "none fits yet" in second and "24.00 GiB" in second


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(studies, "--json") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(r["name"], r["running"], r["best_tokens_per_s"]) for r in rows] == [
        ("s", False, 1234.0),
        ("empty", False, None),
    ]
