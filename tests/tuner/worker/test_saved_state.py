"""What a run would save has the plain model's keys."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.field_reports import models
from tests.field_reports.running import run
from tests.tuner.worker.workloads import shaped, users
from tuner.outcome import Outcome
from tuner.worker import saved_state
from tuner.worker.load import load_model
from tuner.worker.saved_state import SavedState, load_strictly
from tuner.worker.user_code import load_function
from tuner.workload import Adapter, Workload

CPU = torch.device("cpu")


def changed(change: Callable[[Any], Any]) -> str | None:
    """What is said of a model after `change`."""
    model = models.tied()
    model.register_buffer("cache", torch.zeros(1))
    before = SavedState(model, [])
    other = change(model)
    return before.fault(other if isinstance(other, nn.Module) else model)


def _tear(model: Any) -> None:
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())


def _widen(model: Any) -> None:
    model.head.weight = nn.Parameter(torch.zeros(3, 3))


def _lose(model: Any) -> None:
    del model.head.weight


def _wrap(model: Any) -> None:
    model.embed = torch.compile(model.embed, backend="eager")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda model: torch.compile(model, backend="eager"), r"is gone, and there is _orig_mod\."),
        (_wrap, r"the key embed.weight is gone, and there is embed\._orig_mod\.weight"),
        (_lose, r"the key head.weight is gone$"),
        (_widen, r"has the shape \(3, 3\)"),
        (_tear, "are no longer one tensor"),
    ],
    ids=["wrapped", "a part wrapped", "lost", "another shape", "untied"],
)
def test_the_first_key_that_differs_is_named(change: Callable[[Any], Any], words: str) -> None:
    said = changed(change)
    assert said is not None and re.search(words, said), said


@pytest.mark.parametrize(
    "change",
    [
        lambda model: None,
        lambda model: model.compile(backend="eager"),
        lambda model: model.register_buffer("mask", torch.zeros(1)),
        lambda model: setattr(model, "cache", torch.zeros(7)),
        lambda model: delattr(model, "cache"),
    ],
    ids=["nothing", "compiled in place", "a buffer more", "a buffer grown", "a buffer dropped"],
)
def test_what_a_plain_forward_may_do_is_no_fault(change: Callable[[Any], Any]) -> None:
    assert changed(change) is None


def test_a_state_dict_that_raises_is_said_and_compared_no_more() -> None:
    class Refusing(nn.Linear):
        refuses = True

        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            if self.refuses:
                raise KeyError("no")
            return super().state_dict(*args, **kwargs)

    notes: list[str] = []
    model = Refusing(1, 1)
    assert SavedState(model, notes).fault(model) is None
    assert notes == ["saved state: nothing was compared, as state_dict() raised KeyError: 'no'"]
    model.refuses = False
    before = SavedState(model, notes)
    model.refuses = True
    assert before.fault(model) is None and len(notes) == 2


@pytest.mark.parametrize("function", ["saves_part", "masking"])
def test_a_healthy_model_is_not_condemned(function: str) -> None:
    found = run(users(function))
    assert found.verdict().outcome is Outcome.OK, found.verdict().detail
    assert not [note for note in found.result.notes if "saved state" in note]


def test_a_users_function_is_called_once() -> None:
    workload = users("counted")
    calls: list[int] = load_function(workload.model).__globals__["CALLS"]
    before = len(calls)
    assert run(workload).verdict().outcome is Outcome.OK
    assert len(calls) == before + 1


def test_what_is_measured_has_ended_before() -> None:
    found = run(shaped())
    kinds = [event.event for event in found.attempt.events]
    assert kinds.count("measured") == 1 and kinds[-1] == "measured"


@pytest.mark.parametrize(
    "workload",
    [shaped(), shaped(config={"tie_word_embeddings": True}), shaped(adapter=Adapter.LORA)],
    ids=["shape", "tied", "lora"],
)
def test_a_strict_load_into_a_plain_model(workload: Workload) -> None:
    notes: list[str] = []
    model = load_model(workload, CPU, seed=0)
    before = {name: value.data_ptr() for name, value in model.state_dict().items()}
    load_strictly(model, workload, notes)
    assert notes == []
    assert {name: value.data_ptr() for name, value in model.state_dict().items()} == before


def test_a_model_that_is_another_than_its_config_makes() -> None:
    """As a checkpoint that is quantised: it was so before any strategy."""
    model, notes = load_model(shaped(), CPU, seed=0), list[str]()
    model.register_parameter("scale", nn.Parameter(torch.zeros(1)))
    load_strictly(model, shaped(), notes)
    assert len(notes) == 1 and "scale" in notes[0] and "a strict load" in notes[0]


@pytest.mark.parametrize("error", [KeyError("weight"), TypeError("no such argument"), SystemExit(1)])
def test_whatever_a_load_raises_is_said(error: BaseException) -> None:
    class Own(nn.Linear):
        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            raise error

    notes: list[str] = []
    load_strictly(Own(1, 1), shaped(), notes)
    assert len(notes) == 1 and type(error).__name__ in notes[0]


def test_where_no_twin_can_be_built_keys_alone_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> nn.Module:
        raise ValueError("no config")

    notes: list[str] = []
    monkeypatch.setattr(saved_state, "load_model", fail)
    load_strictly(nn.Linear(1, 1), shaped(), notes)
    assert notes == ["saved state: keys and shapes alone were compared, as the plain twin raised ValueError: no config"]
    load_strictly(nn.Linear(1, 1), shaped(adapter=Adapter.QLORA), notes)
    assert "quantised" in notes[1]
