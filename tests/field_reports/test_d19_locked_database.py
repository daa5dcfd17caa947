"""D19: a dashboard or a second worker locks the study's database."""

from __future__ import annotations

import sqlite3
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.tuner.searching import Bench, End, bench
from tests.tuner.test_storage import locked
from tuner import bench as benches
from tuner.errors import ExitCode
from tuner.protocol import TrialRequest

__all__ = ["bench"]
LOCK_SECONDS = 1.5


@pytest.mark.parametrize("when", ["ask", "tell"])
def test_a_lock_that_outlasts_the_busy_timeout_loses_no_trial(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    # In place of 40 seconds against a busy timeout of 5.
    monkeypatch.setattr(benches, "open_storage", partial(benches.open_storage, busy_seconds=0.1))
    path, locks, launches = Path("studies/tuner.db").resolve(), ExitStack(), list[str]()

    def answer(request: TrialRequest, _: bool) -> End | None:
        launches.append(request.trial_uuid)
        if when == "tell" and len(launches) == 3:
            locks.enter_context(locked(path, LOCK_SECONDS))
        return None

    with locks, bench.open(answer, trials=5) as (opened, _):
        if when == "ask":
            locks.enter_context(locked(path, LOCK_SECONDS))
        end = opened.search.run()
    assert end.exit_code is ExitCode.DONE
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT uuid, outcome FROM tuner_trial ORDER BY id").fetchall()
    assert rows == [(launched, "ok") for launched in launches] and len(rows) == 6
