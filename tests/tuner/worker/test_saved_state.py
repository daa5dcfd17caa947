"""What a run would save has the plain model's keys."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.field_reports import models
from tests.tuner.worker.workloads import shaped, users
from tuner.worker.load import load_model
from tuner.worker.saved_state import NothingOnTheCard, SavedState, load_fault
from tuner.workload import Adapter, Workload

CPU = torch.device("cpu")


def changed(change: Callable[[nn.Module], nn.Module | None]) -> str | None:
    """What is said of a model after `change`."""
    model = models.tied()
    before = SavedState(model)
    other = change(model)
    return before.fault(other if isinstance(other, nn.Module) else model)


def _tear(model: nn.Module) -> None:
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())  # type: ignore[union-attr, operator, arg-type]


def _widen(model: nn.Module) -> None:
    model.head.weight = nn.Parameter(torch.zeros(3, 3))  # type: ignore[union-attr]


def test_nothing_done_is_no_fault() -> None:
    assert changed(lambda model: None) is None
    assert changed(lambda model: model.compile(backend="eager")) is None  # type: ignore[func-returns-value]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda model: torch.compile(model, backend="eager"), r"is gone, and there is _orig_mod\."),
        (lambda model: model.register_buffer("extra", torch.zeros(1)), "extra was not there before"),
        (_widen, r"has the shape \(3, 3\)"),
        (_tear, "are no longer one tensor"),
    ],
    ids=["wrapped", "added", "another shape", "untied"],
)
def test_the_first_key_that_differs_is_named(change: Callable[[nn.Module], None], words: str) -> None:
    import re

    said = changed(change)
    assert said is not None and re.search(words, said), said


@pytest.mark.parametrize(
    "workload",
    [
        shaped(),
        shaped(config={"tie_word_embeddings": True}),
        shaped(adapter=Adapter.LORA),
        users(),
        users(adapter=Adapter.LORA),
    ],
    ids=["shape", "tied", "lora", "function", "lora on a function's"],
)
def test_a_strict_load_into_a_plain_model(workload: Workload) -> None:
    notes: list[str] = []
    model = load_model(workload, CPU, seed=0)
    before = {name: value.data_ptr() for name, value in model.state_dict().items()}
    assert load_fault(model, workload, notes) is None and notes == []
    assert {name: value.data_ptr() for name, value in model.state_dict().items()} == before


@pytest.mark.parametrize("workload", [shaped(), users()], ids=["shape", "function"])
def test_a_model_that_is_another_by_now(workload: Workload) -> None:
    model = load_model(workload, CPU, seed=0)
    model.register_parameter("adapter", nn.Parameter(torch.zeros(1)))
    said = load_fault(model, workload, [])
    assert said is not None and "adapter" in said


def on_a_card() -> nn.Module:
    """A model whose function names its device."""
    return nn.Linear(2, 2, device="cuda")


def test_a_device_that_the_function_names_gets_nothing() -> None:
    notes: list[str] = []
    assert load_fault(nn.Linear(2, 2), users().model_copy(update={"model": f"{__file__}:on_a_card"}), notes) is None
    assert "keys and shapes alone were compared" in notes[0]


def test_a_card_is_refused_before_anything_is_made_there() -> None:
    with NothingOnTheCard(), pytest.raises(RuntimeError, match="asks for a tensor on cuda"):
        torch.ops.aten.empty.memory_format([2], device=torch.device("cuda"))
    with NothingOnTheCard():
        assert torch.empty(2, device="meta").is_meta


def test_a_model_that_needs_a_device_is_said_to_be_compared_by_keys_alone() -> None:
    notes: list[str] = []
    assert load_fault(nn.Linear(1, 1), users("raises"), notes) is None
    assert "keys and shapes alone were compared" in notes[0]
    assert load_fault(nn.Linear(1, 1), shaped(adapter=Adapter.QLORA), notes) is None
    assert "quantised" in notes[1]
