"""The folder of a trial: what is written is read back, what is broken is said to be."""

from __future__ import annotations

import json
import math
import threading
import time
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.tuner.trials import parity, request, result
from tuner.kinds import Phase
from tuner.protocol import Event, TrialResult
from tuner.trial_dir import RESULT_MISSING, TrialDir


def event(step: int) -> Event:
    return Event(time=time.time(), event="step", phase=Phase.STEADY, step=step, seconds=0.1)


@pytest.fixture
def folder(tmp_path: Path) -> TrialDir:
    return TrialDir.create(tmp_path, "study", "7")


def test_create_never_gives_a_folder_twice(tmp_path: Path) -> None:
    paths = [TrialDir.create(tmp_path, "study", "7").path.name for _ in range(3)]
    assert paths == ["7", "7.1", "7.2"]


def test_request_comes_back(folder: TrialDir) -> None:
    asked = request(deadlines={Phase.LOAD: 3.5})
    folder.write_request(asked)
    assert folder.read_request() == asked


def test_unknown_request_is_an_error(folder: TrialDir) -> None:
    folder.request_path.write_text(json.dumps(request().model_dump(mode="json") | {"schema_version": 2}))
    with pytest.raises(ValidationError):
        folder.read_request()


def test_result_comes_back_with_nan_as_nan(folder: TrialDir) -> None:
    folder.write_result(result("a", parity=parity(loss=math.nan, gradient=(math.inf, 1.0))))
    read = folder.read_result("a")
    assert isinstance(read, TrialResult) and read.parity is not None
    assert math.isnan(read.parity.loss) and read.parity.gradient == (math.inf, 1.0)


def test_writing_leaves_no_temporary_file(folder: TrialDir) -> None:
    folder.write_result(result("a"))
    assert [path.name for path in folder.path.iterdir()] == ["result.json"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"schema_version": 1, "trial', "not whole JSON"),
        ("", "not whole JSON"),
        ('{"schema_version": 2}', "schema version 2"),
        ("[]", "schema version None"),
        ('{"schema_version": 1, "trial_uuid": "a", "colour": 1}', "colour"),
        ('{"schema_version": 1, "trial_uuid": "b"}', "of trial b, not a"),
    ],
)
def test_broken_results_are_told_apart(folder: TrialDir, text: str, words: str) -> None:
    folder.result_path.write_text(text)
    error = folder.read_result("a")
    assert isinstance(error, str) and words in error and error != RESULT_MISSING


def test_missing_result_is_said(folder: TrialDir) -> None:
    assert folder.read_result("a") == RESULT_MISSING


def test_events_are_read_once_each(folder: TrialDir) -> None:
    assert folder.read_events().events == () and folder.events_size() == 0
    folder.append_event(event(1))
    first = folder.read_events()
    folder.append_event(event(2))
    second = folder.read_events(first.offset)
    assert [e.step for e in first.events + second.events] == [1, 2]
    assert second.offset == folder.events_size()


def test_half_a_last_line_waits_for_its_rest(folder: TrialDir) -> None:
    line = event(1).model_dump_json() + "\n"
    folder.events_path.write_text(line + line[:20])
    batch = folder.read_events()
    assert len(batch.events) == 1 and batch.broken == () and batch.offset == len(line)
    folder.events_path.write_text(line * 2)
    assert len(folder.read_events(batch.offset).events) == 1


def test_a_line_that_is_no_event_is_kept_apart(folder: TrialDir) -> None:
    folder.events_path.write_text("nonsense\n" + event(1).model_dump_json() + "\n")
    batch = folder.read_events()
    assert batch.broken == ("nonsense",) and len(batch.events) == 1


def test_writers_at_the_same_time_do_not_mix_lines(folder: TrialDir) -> None:
    def write() -> None:
        for step in range(50):
            folder.append_event(event(step))

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    batch = folder.read_events()
    assert len(batch.events) == 200 and batch.broken == ()


def test_tail_is_the_last_lines(folder: TrialDir) -> None:
    assert folder.tail() == ""
    folder.log_path.write_bytes(b"\xff first\n" + b"x" * 100_000 + b"\n" + b"\n".join(b"%d" % n for n in range(50)))
    assert folder.tail(3) == "47\n48\n49"
    assert len(folder.tail().splitlines()) == 40
