"""Re-entrant checkpointing that nothing with a gradient goes into."""

from __future__ import annotations

import pytest
import torch
from torch.utils import checkpoint as checkpoints
from torch.utils.checkpoint import checkpoint

from tuner.worker import reentrant


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "check_backward_validity", checkpoints.check_backward_validity)
    reentrant.watch()


def run(use_reentrant: bool, requires_grad: bool) -> None:
    x = torch.ones(2, 4, requires_grad=requires_grad)
    checkpoint(torch.nn.Linear(4, 4), x, use_reentrant=use_reentrant)


def test_it_is_noted_and_torch_still_warns() -> None:
    with pytest.warns(UserWarning, match="None of the inputs have requires_grad"):
        run(use_reentrant=True, requires_grad=False)
    assert reentrant.starved()
    reentrant.watch()
    assert not reentrant.starved(), "another trial begins"


@pytest.mark.parametrize(("use_reentrant", "requires_grad"), [(True, True), (False, False), (False, True)])
def test_what_trains_is_not(use_reentrant: bool, requires_grad: bool) -> None:
    run(use_reentrant, requires_grad)
    assert not reentrant.starved()
