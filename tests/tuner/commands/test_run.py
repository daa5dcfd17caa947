"""``tuner run`` as a person starts it, on what ``tuner export`` wrote."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tuner.trials import FAKES, ROOT

TUNER = [sys.executable, str(FAKES / "tuner_with_trainer.py")]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


def tuner(*arguments: str) -> tuple[int, str, str]:
    done = subprocess.run([*TUNER, *arguments], env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def rules(*found: dict[str, Any]) -> None:
    Path("studies/fake.json").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A searched study and its exported winner, made once."""
    folder = tmp_path_factory.mktemp("searched")
    for command in ("search --device cpu --budget-gb 1 --trials 3", "export -o best.yaml"):
        subprocess.run([*TUNER, *command.split()], env=ENVIRONMENT, cwd=folder, check=True, timeout=120)
    return folder


@pytest.fixture
def best(searched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same in a working directory of its own."""
    folder = shutil.copytree(searched, tmp_path / "here")
    monkeypatch.chdir(folder)
    return folder / "best.yaml"


def test_it_holds_does_not_hold_or_cannot_work(best: Path) -> None:
    code, out, err = tuner("run", "best.yaml")
    assert (code, err) == (0, "") and "It holds: within the limit of 0.97 GiB" in out
    assert "the file" in out and "now / file" in out and "1.000" in out

    rules({"do": "scale", "by": 0.9})
    code, out, err = tuner("run", "best.yaml")
    assert (code, err) == (5, "") and "It does not hold: 1,227 tokens/s" in out

    rules({"do": "fail", "failure_class": "oom"})
    code, out, err = tuner("run", "best.yaml", "--json")
    assert code == 5 and json.loads(out.splitlines()[-1])["outcome"] == "oom"

    plan = yaml.safe_load(best.read_text())
    plan["strategy"]["optimizer"] = "adamw-8bit-paged"
    best.write_text(yaml.safe_dump(plan))
    code, out, err = tuner("run", "best.yaml")
    assert (code, out) == (2, "") and err.startswith("tuner run: strategy: cannot work here: there is no paged memory")
    assert err.count("\n") == 1


def test_json_is_the_record_alone(best: Path) -> None:
    code, out, err = tuner("run", "best.yaml", "--json")
    (line,) = out.splitlines()
    found = json.loads(line)
    assert code == 0 and found["role"] == "run" and found["outcome"] == "ok" and "budget 1.00 GiB" in err


def test_the_searchs_record_stays_the_best(best: Path) -> None:
    _, before, _ = tuner("export")
    rules({"do": "scale", "by": 1.2})
    assert tuner("run", "best.yaml")[0] == 0
    assert tuner("export")[1] == before


def test_a_signal_is_an_orderly_end(best: Path) -> None:
    rules({"do": "hang"})
    process = subprocess.Popen(
        [*TUNER, "run", "best.yaml"], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not list(Path("studies").glob("*/run/events.jsonl")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and err.startswith("tuner run: interrupted")


def test_an_unknown_key_of_the_file(best: Path) -> None:
    best.write_text(best.read_text() + "studdy: mine\n")
    assert tuner("run", "best.yaml") == (2, "", "tuner run: studdy: is not a known key (did you mean 'study'?)\n")
