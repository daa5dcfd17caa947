"""D9: adapters over a frozen base under re-entrant checkpointing: nothing requires a gradient."""

from __future__ import annotations

import pytest
import yaml

from strategies.checkpointing import KNOB as CHECKPOINTING
from tests.field_reports.running import LAYER, WHOLE, run, users
from tests.tuner.made import record_of, study_of
from tuner.export import exported as exported_plan
from tuner.export import to_yaml
from tuner.kinds import Kind
from tuner.outcome import Outcome

pytestmark = pytest.mark.usefixtures("quick_compile")


@pytest.mark.parametrize("strategy", [{}, LAYER], ids=["eager", "compiled"])
def test_reentrant_is_no_gradient_neither_memory_nor_the_compilers_fault(strategy: dict[str, str]) -> None:
    found = run(users("reentrant"), **strategy)
    verdict = found.verdict()
    assert (verdict.outcome, verdict.kind) == (Outcome.WRONG_RESULT, Kind.NO_GRADIENT)
    assert "does not require grad" in verdict.detail and found.result.throughput is None
    assert "the model's own code checkpoints with use_reentrant=True" in verdict.detail


def test_a_loss_without_gradient_is_not_blamed_on_checkpointing_that_is_not_there() -> None:
    verdict = run(users("detached")).verdict()
    assert (verdict.outcome, verdict.kind) == (Outcome.WRONG_RESULT, Kind.NO_GRADIENT)
    assert "checkpoint" not in verdict.detail


def test_inside_one_compiled_model_reentrant_trains_and_the_verdict_is_from_the_gradient() -> None:
    found = run(users("reentrant"), **WHOLE)
    parity = found.result.parity
    assert parity is not None and parity.gradient_norm > 0 and parity.tensors_without_gradient == 0
    assert found.verdict(run(users("non_reentrant")).result.parity).outcome is Outcome.OK


@pytest.mark.parametrize("strategy", [{}, LAYER], ids=["eager", "compiled"])
def test_non_reentrant_trains(strategy: dict[str, str]) -> None:
    found = run(users("non_reentrant"), **strategy)
    assert found.verdict().outcome is Outcome.OK
    parity = found.result.parity
    assert parity is not None and parity.parameter_changed and parity.tensors_without_gradient == 0


@pytest.mark.parametrize("strategy", [{}, LAYER], ids=["eager", "compiled"])
def test_our_own_checkpointing_trains_over_a_frozen_base(strategy: dict[str, str]) -> None:
    reference = run(users("frozen_base")).result.parity
    found = run(users("frozen_base"), **strategy, checkpointing="every-block")
    verdict = found.verdict(reference)
    assert (verdict.outcome, verdict.detail) == (Outcome.OK, "")


@pytest.mark.parametrize("value", ["every-block", "every-second-block"])
def test_the_variant_is_exported(value: str) -> None:
    exported = CHECKPOINTING.export(value, "trainer")
    assert exported is not None
    assert {"use_reentrant": False}.items() <= next(v for v in exported.values() if isinstance(v, dict)).items()
    record = record_of(strategy={"checkpointing": value})
    written = yaml.safe_load(to_yaml(exported_plan(study_of(), record), record))
    assert written["use_reentrant"] is False and written["strategy"]["checkpointing"] == value
    assert exported_plan(study_of(), record_of()).use_reentrant is None
