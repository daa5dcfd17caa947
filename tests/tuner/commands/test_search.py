"""``tuner search`` as a person starts it: real processes, with a worker that does not train."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.tuner.trials import FAKES, ROOT

COMMAND = ("search", "--device", "cpu", "--budget-gb", "1", "--time-budget", "20m")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(FAKES / "tuner_with_trainer.py"), *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def tuner(*arguments: str) -> tuple[int, str, str]:
    """Run to the end; exit status, stdout and stderr."""
    process = start(*arguments)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def rules(*found: dict[str, Any]) -> None:
    Path("studies").mkdir(exist_ok=True)
    Path("studies/fake.json").write_text(json.dumps(found))


def rows(query: str = "SELECT number, role, outcome, source FROM tuner_trial ORDER BY id") -> list[Any]:
    with closing(sqlite3.connect("studies/tuner.db")) as connection:
        return connection.execute(query).fetchall()


def until(condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.02)


def workers(folder: Path) -> list[psutil.Process]:
    """Every process that works below the folder, the search itself apart."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if any(str(folder) in word for word in line) and "trainer.py" in " ".join(line):
            found.append(process)
    return found


def trial_file(number: str, name: str) -> Path | None:
    return next(iter(Path("studies").glob(f"*/{number}/{name}")), None)


def in_phase(number: str, phase: str) -> bool:
    path = trial_file(number, "events.jsonl")
    return path is not None and f'"{phase}"' in path.read_text()


def check_nothing_twice() -> None:
    numbers = [number for (number,) in rows("SELECT number FROM tuner_trial WHERE number IS NOT NULL")]
    assert len(numbers) == len(set(numbers))
    states = [state for (state,) in rows("SELECT state FROM trials")]
    assert "RUNNING" not in states and "WAITING" not in states


def test_a_search_as_a_person_sees_it() -> None:
    code, out, err = tuner(*COMMAND, "--trials", "6")
    assert (code, err) == (0, "")
    assert "assumed: model tiny, adapter full, precision 32-true, seq-len 128, random weights" in out
    assert len(re.findall(r"  ok: ", out)) >= 7
    assert "proved in a fresh process" in " ".join(out.split())  # lines are cut at 80 columns
    assert re.search(r"tuner export --study \S+ -o best\.yaml", out)
    assert [row[:3] for row in rows()] == [*((n, "search", "ok") for n in range(6)), (None, "proof", "ok")]
    # Plain SQL answers what every trial took in its first step.
    query = """SELECT t.number, p.device_bytes FROM tuner_trial t JOIN tuner_phase p ON p.trial_uuid = t.uuid
               WHERE p.phase = 'first_step' AND t.role = 'search' ORDER BY t.number"""
    found = rows(query)
    assert [number for number, _ in found] == list(range(6)) and all(size > 2**27 for _, size in found)


def test_json_is_one_object_a_trial_and_nothing_else() -> None:
    code, out, err = tuner(*COMMAND, "--trials", "3", "--json")
    found = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [record["role"] for record in found] == ["search"] * 3 + ["proof"]
    assert found[0]["source"] == "reference: baseline" and "headroom_bytes" in found[0]
    assert "all 3 trials were launched" in err


def test_a_crash_once_is_tried_again() -> None:
    rules({"when": {"mode": "off", "checkpointing": "off"}, "do": "crash", "times": 1})
    assert tuner(*COMMAND, "--trials", "3")[0] == 0
    assert [row[1:3] for row in rows()[:2]] == [("search", "crash"), ("retry", "ok")]
    assert [state for (state,) in rows("SELECT state FROM trials ORDER BY number LIMIT 2")] == ["FAIL", "COMPLETE"]


def test_a_worker_that_hangs_is_ended_at_its_deadline(folder: Path) -> None:
    rules({"when": {"mode": "default"}, "do": "hang", "times": 1})
    assert tuner(*COMMAND, "--trials", "3", "--deadline", "first_step=0.5")[0] == 0
    assert rows()[2][2] == "timeout" and workers(folder) == []


def test_one_sentence_where_the_users_code_raises() -> None:
    rules({"do": "user_code"})
    code, _, err = tuner(*COMMAND)
    assert (code, err) == (2, "tuner search: the user's code: fake.Error: made to end as user_code\n")
    assert rows() == []


def test_nothing_fits() -> None:
    code, out, err = tuner("search", "--device", "cpu", "--budget-gb", "0.09")
    assert (code, err) == (3, "") and [row[2] for row in rows()] == ["oom"]
    assert "load" in out
    code, out, err = tuner("search", "--device", "cpu", "--budget-gb", "0.12")
    assert code == 3 and [row[3] for row in rows()[1:]] == [
        *("reference: baseline", "reference: checkpointing", "recipe: leanest-eager", "recipe: leanest-whole")
    ]


def test_no_verdict_names_the_cause() -> None:
    rules({"do": "fail", "failure_class": "wrong_result"})
    code, out, _ = tuner(*COMMAND)
    assert code == 6 and "all ended with wrong_result" in out and len(rows()) == 5


def test_a_killed_parent_loses_nothing(folder: Path) -> None:
    rules({"when": {"mode": "default"}, "do": "hang", "times": 1})
    process = start(*COMMAND, "--trials", "6")
    until(lambda: in_phase("2", "first_step"), "the third trial")
    process.kill()
    process.communicate()
    until(lambda: workers(folder) == [], "the end of the worker", 15)
    assert [row[0] for row in rows()] == [0, 1]

    code, _, err = tuner(*COMMAND, "--trials", "4")
    assert (code, err) == (0, "")
    found = rows()
    assert found[0] == (0, "search", "ok", "reference: baseline") and found[2][:3] == (3, "search", "ok")
    assert [number for number, role, *_ in found if role == "search"] == [0, 1, 3, 4, 5, 6]
    strategies = [s for (s,) in rows("SELECT strategy FROM tuner_trial WHERE role = 'search'")]
    assert len(strategies) == len(set(strategies))
    check_nothing_twice()
    assert workers(folder) == []


def test_a_result_that_reached_its_file_before_the_kill_is_kept(folder: Path) -> None:
    rules({"when": {"mode": "default"}, "do": "wait_after_result", "times": 1})
    process = start(*COMMAND, "--trials", "6")
    until(lambda: trial_file("2", "result.json"), "the third result")
    process.kill()
    process.communicate()
    until(lambda: workers(folder) == [], "the end of the worker", 15)
    assert len(rows()) == 2, "the parent had no time to record it"

    assert tuner(*COMMAND, "--trials", "1")[0] == 0
    found = rows()
    assert found[2] == (2, "search", "ok", "recovered") and found[3][0] == 3
    strategies = [s for (s,) in rows("SELECT strategy FROM tuner_trial WHERE role = 'search'")]
    assert len(strategies) == len(set(strategies)) == 4
    check_nothing_twice()


def test_a_parent_killed_again_and_again(folder: Path) -> None:
    rules({"do": "sleep", "seconds": 0.3})
    for _ in range(2):
        process = start(*COMMAND, "--trials", "20")
        before = len(list(Path("studies").glob("*/*/request.json")))
        until(lambda n=before: len(list(Path("studies").glob("*/*/request.json"))) >= n + 2, "two more trials")  # type: ignore[misc]
        process.kill()
        process.communicate()
    until(lambda: workers(folder) == [], "the end of the worker", 15)
    assert tuner(*COMMAND, "--trials", "2")[0] == 0
    check_nothing_twice()
    launched = rows("SELECT fingerprint FROM tuner_trial WHERE role = 'search' AND outcome = 'ok'")
    assert len(launched) == len(set(launched)) >= 4


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_an_orderly_end(folder: Path, number: signal.Signals) -> None:
    rules({"when": {"mode": "default"}, "do": "hang", "times": 1})
    process = start(*COMMAND, "--trials", "6")
    until(lambda: in_phase("2", "first_step"), "the third trial")
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and workers(folder) == []
    assert err.startswith("tuner search: interrupted") and err.count("\n") == 1
    assert [row[2] for row in rows()] == ["ok", "ok", "interrupted"]
    check_nothing_twice()

    assert tuner(*COMMAND, "--trials", "1")[0] == 0
    asked = rows("SELECT strategy, source, outcome FROM tuner_trial WHERE role = 'search' ORDER BY id")
    assert asked[3] == (asked[2][0], "recipe: layer-amb", "ok")


def test_two_searches_of_one_study_at_a_time(folder: Path) -> None:
    rules({"do": "hang", "times": 1})
    first = start(*COMMAND)
    until(lambda: in_phase("0", "first_step"), "the first trial")
    code, _, err = tuner(*COMMAND)
    assert code == 4 and re.fullmatch(
        rf"tuner search: study '.*' is being searched by process {first.pid} on .*\n", err
    )
    assert len(workers(folder)) == 1, "the first one's worker is left alone"
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=30)


def test_the_parent_never_imports_torch() -> None:
    script = (
        "import sys, tuner_with_trainer as t; t.fake(); from tuner.cli import main; "
        f"code = main({[*COMMAND, '--trials', '11', '--sampler', 'tpe']!r}); "
        "print('loaded', sorted({'torch', 'transformers', 'bitsandbytes'} & set(sys.modules)), code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{FAKES}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.endswith("loaded [] 0\n") and "sampler: tpe" in done.stdout
