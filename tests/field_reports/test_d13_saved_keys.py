"""D13: what is saved after training under a strategy loads into a plain model."""

from __future__ import annotations

import io

import pytest
import torch
from torch import nn

from tests.field_reports import models
from tests.field_reports.running import LAYER, WHOLE, run, users
from tuner.build import Applied, Plan, apply
from tuner.outcome import Outcome
from tuner.worker import measure

pytestmark = pytest.mark.usefixtures("quick_compile")


@pytest.mark.parametrize("function", ["plain", "tied"])
@pytest.mark.parametrize("strategy", [WHOLE, LAYER], ids=["whole", "layer"])
def test_a_strict_load_into_a_plain_twin(strategy: dict[str, str], function: str) -> None:
    found = run(users(function), **strategy, checkpointing="every-block")
    assert found.verdict().outcome is Outcome.OK
    assert not [note for note in found.result.notes if "saved state" in note], "a plain model was built and loaded"
    trained, twin, saved = found.trial.model, getattr(models, function)(), io.BytesIO()
    torch.save(trained.state_dict(), saved)
    saved.seek(0)
    loaded = torch.load(saved)
    assert list(loaded) == list(twin.state_dict())
    twin.load_state_dict(loaded, strict=True)
    for name, value in twin.state_dict().items():
        assert torch.equal(value, trained.state_dict()[name]), name


def test_a_wrapper_in_the_way_is_a_wrong_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrapped(model: nn.Module, plan: Plan) -> Applied:
        applied = apply(model, plan)
        model.embed = torch.compile(model.embed, backend="eager")  # type: ignore[assignment, arg-type]
        return applied

    monkeypatch.setattr(measure, "apply", wrapped)
    verdict = run(users("plain")).verdict()
    assert (verdict.outcome, verdict.kind) == (Outcome.WRONG_RESULT, None)
    assert "the key embed.weight is gone, and there is embed._orig_mod.weight" in verdict.detail


def test_a_tied_tensor_is_counted_once() -> None:
    one, two = run(users("tied")).result, run(users("plain")).result
    assert one.parameters is not None and two.parameters is not None
    assert two.parameters - one.parameters == models.VOCABULARY * models.WIDTH
    assert one.trainable_parameters == one.parameters
