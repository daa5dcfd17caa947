"""The live line on a terminal."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

from tests.tuner.made import record_of, study_of
from tuner.kinds import Phase
from tuner.outcome import Outcome
from tuner.plain_progress import JsonListener, PlainListener
from tuner.progress import RichListener, listening, make_console

LAYER = {"mode": "default", "scope": "layer"}


@pytest.fixture
def screen() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def listener(screen: io.StringIO) -> RichListener:
    return RichListener(Console(file=screen, force_terminal=True, width=200, color_system=None))


def test_the_line_says_what_is_done_left_best_and_running(listener: RichListener) -> None:
    listener.started(study_of(), ["--model is assumed"], 12, 600.0)
    try:
        listener.trial_started(0, LAYER, "recipe: layer")
        listener.phase(Phase.FIRST_STEP, "compiling layer 3")
        line = listener.line().plain
        assert "0 of 12 trials" in line and "none fits yet" in line
        assert "9 m 5" in line or "10 m 00 s left" in line
        assert "0: mode=default, scope=layer: first_step (compiling layer 3), 0 s" in line
        record = record_of(strategy=LAYER, number=0)
        listener.trial_finished(record, record, 540.0)
        line = listener.line().plain
        assert "1 of 12 trials" in line and "1,000 tokens/s, 3.00 GiB to spare" in line
        assert "9 m 00 s left" in line or "8 m 5" in line
        assert "first_step" not in line
    finally:
        listener.finished("time is over")


def test_a_resumed_search_shows_what_it_knows(listener: RichListener) -> None:
    listener.started(study_of(), [], None, None, record_of(strategy=LAYER))
    try:
        assert "best: 1,000 tokens/s, 3.00 GiB to spare" in listener.line().plain
    finally:
        listener.finished("")


def test_a_proof_is_no_trial(listener: RichListener) -> None:
    listener.remember(study_of())
    listener.trial_finished(record_of(role="proof"), None, 1.0)
    assert "0 trials" in listener.line().plain


def test_each_finished_trial_leaves_one_line(listener: RichListener, screen: io.StringIO) -> None:
    listener.started(study_of(), [], None, None)
    listener.trial_started(3, LAYER, "sampler: tpe")
    dead = record_of(Outcome.OOM, LAYER, number=3, source="sampler: tpe", phase=Phase.SETTLE, detail="[red]2 GiB more")
    listener.trial_finished(dead, None, 60.0)
    listener.finished("the space is exhausted")
    text = screen.getvalue()
    assert "3  mode=default, scope=layer (sampler: tpe)  out of memory in settle: [red]2 GiB more  [30.0 s]" in text
    assert text.rstrip().endswith("the space is exhausted") or "the space is exhausted" in text
    assert not listener.live.is_started


def test_the_live_line_goes_when_the_search_raises(monkeypatch: pytest.MonkeyPatch, screen: io.StringIO) -> None:
    monkeypatch.setattr("tuner.progress.make_console", lambda: Console(file=screen, force_terminal=True))
    with pytest.raises(RuntimeError), listening() as listener:
        assert isinstance(listener, RichListener)
        listener.started(study_of(), [], None, None)
        assert listener.live.is_started
        raise RuntimeError
    assert not listener.live.is_started


def test_the_listener_fits_where_it_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with listening() as listener:
        assert isinstance(listener, PlainListener)
    with listening(as_json=True) as listener:
        assert isinstance(listener, JsonListener)


@pytest.mark.parametrize(("value", "coloured"), [(None, True), ("", True), ("1", False)])
def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch, value: str | None, coloured: bool) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    if value is not None:
        monkeypatch.setenv("NO_COLOR", value)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    out = io.StringIO()
    make_console(out).print("text", style="red")
    assert ("\x1b[31m" in out.getvalue()) == coloured
