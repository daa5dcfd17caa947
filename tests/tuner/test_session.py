"""A search opened and closed again: what is held, and given back."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.tuner_with_trainer import HEALTHY
from tests.tuner.searching import Bench, bench
from tuner import check, session
from tuner.errors import Interrupted, MachineError

__all__ = ["bench"]


def test_a_machine_that_cannot_compile_searches_eager_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "ask_child", lambda *_: HEALTHY.model_copy(update={"compile_seconds": None}))
    with pytest.raises(MachineError, match=r"nothing can be compiled here: .* \(--fix mode=off searches without\)"):
        bench.run(trials=1)
    found = bench.run(trials=1, fix={"mode": "off"})
    assert found.end.exit_code == 0


def test_the_lease_is_held_and_given_back(bench: Bench) -> None:
    with bench.open() as (made, _):
        name = made.study.name
        assert made.records.lease_holder(name) is not None
        with pytest.raises(MachineError, match="is being searched by process"), bench.open():
            pass
    with bench.open() as (made, _):
        assert made.study.name == name


def test_an_error_on_the_way_gives_all_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise MachineError("the card is in use")

    with monkeypatch.context() as patch, pytest.raises(MachineError, match="in use"):
        patch.setattr(session, "recover", broken)
        patch.setattr(session, "make_requests", broken)
        bench.run()
    with bench.open():
        pass


def test_a_stop_is_passed_on_while_a_search_is_opened(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*arguments: Any) -> Any:
        assert arguments[-1](), "the child is asked with what tells of a stop"
        raise Interrupted("interrupted")

    monkeypatch.setattr(check, "ask_child", ask)
    with pytest.raises(Interrupted), bench.open(stopped=lambda: True):
        pass
