"""Plain lines for a log, JSON for a program."""

from __future__ import annotations

import io
import json

from tests.tuner.made import record_of, result_of, study_of
from tests.tuner.test_peak_phase import phases
from tuner.kinds import Phase
from tuner.outcome import Outcome
from tuner.plain_progress import JsonListener, PlainListener, trial_line
from tuner.protocol import TrialResult
from tuner.units import GIB

LAYER = {"mode": "default", "scope": "layer"}


def test_plain_lines() -> None:
    out = io.StringIO()
    listener = PlainListener(out)
    listener.started(study_of(), ["budget clamped"], 8, 1800.0)
    listener.trial_started(0, LAYER, "recipe: layer")
    listener.phase(Phase.LOAD)
    record = record_of(strategy=LAYER, number=0, source="recipe: layer")
    listener.trial_finished(record, record, 1700.0)
    listener.trial_started("proof", LAYER, "proof")
    listener.trial_finished(record_of(Outcome.CRASH, LAYER, role="proof", detail="exit 3"), None, -2.0)
    listener.message("one line")
    listener.finished("the trials are done")
    lines = out.getvalue().splitlines()
    assert "budget 24.00 GiB" in lines[0] and "30 m 00 s" in lines[0] and "at most 8 trials" in lines[0]
    assert lines[1] == "budget clamped"
    assert lines[2] == "    0  mode=default, scope=layer (recipe: layer) ..."
    assert "ok: 1,000 tokens/s, 20.00 GiB, 3.00 GiB to spare" in lines[3]
    assert lines[3].endswith("best: 1,000 tokens/s, 3.00 GiB to spare; 28 m 20 s left")
    assert lines[5].startswith("proof  ") and "crashed: exit 3" in lines[5]
    assert lines[5].endswith("best: none fits yet; 0.0 s left")
    assert lines[6:] == ["one line", "the trials are done"]


def test_json_is_one_object_a_trial_and_nothing_else() -> None:
    out, err = io.StringIO(), io.StringIO()
    listener = JsonListener(out, err)
    listener.started(study_of(), ["a note"], None, 60.0)
    listener.trial_started(0, {}, "reference: baseline")
    listener.phase(Phase.LOAD)
    fits = record_of(number=0, result=result_of(), tail="log")
    listener.trial_finished(fits, fits, 50.04)
    dead = record_of(Outcome.OOM, LAYER, number=1, phase=Phase.SETTLE)
    listener.trial_finished(dead, fits, 40.0)
    listener.message("a message")
    listener.finished("the end")
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert (first["outcome"], first["headroom_bytes"], first["best"]) == ("ok", 3 * GIB, fits.uuid)
    assert first["seconds_left"] == 50.0 and "result" not in first and "tail" not in first
    assert (second["outcome"], second["phase"], second["headroom_bytes"]) == ("oom", "settle", None)
    said = err.getvalue()
    assert "a note" in said and "a message" in said and said.endswith("the end\n")


def test_what_is_known_from_before_is_the_best_from_the_start() -> None:
    out, err = io.StringIO(), io.StringIO()
    PlainListener(out).started(study_of(), [], None, None, record_of(strategy=LAYER))
    assert out.getvalue().splitlines()[1] == "best so far: mode=default, scope=layer, 1,000 tokens/s, 3.00 GiB to spare"
    JsonListener(io.StringIO(), err).started(study_of(), [], None, None, record_of(strategy=LAYER))
    assert "best so far: " in err.getvalue()


def test_the_line_of_a_trial_says_where_its_peak_was_unless_in_steady() -> None:
    early = TrialResult(trial_uuid="u", phases=phases(load=12, first_step=19, settle=18, steady=18))
    line = trial_line(record_of(strategy=LAYER, result=early), 23 * GIB)
    assert "3.00 GiB to spare, peak in first_step, 1.00 GiB above steady  [30.0 s]" in line
    level = TrialResult(trial_uuid="u", phases=phases(load=12, first_step=18, settle=18, steady=18))
    assert "peak" not in trial_line(record_of(strategy=LAYER, result=level), 23 * GIB)
    out = io.StringIO()
    JsonListener(out, io.StringIO()).trial_finished(record_of(strategy=LAYER, result=early), None, 0.0)
    assert json.loads(out.getvalue())["peak_phase"] == {"phase": "first_step", "above_steady_bytes": GIB, "cause": ""}
