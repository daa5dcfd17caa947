"""Which twin test a strategy needs, and what one says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strategies.registry import KNOBS
from tests.tuner.made import CUDA, record_of, study_of
from tuner.kinds import Kind
from tuner.limits import limits
from tuner.outcome import Outcome
from tuner.proposals import Proposal
from tuner.record import TrialRecord
from tuner.requests import Requests
from tuner.shapes import SHAPES
from tuner.space import canonical
from tuner.twins import Twins
from tuner.units import GIB
from tuner.workload import Lengths, ModelKind, Workload

LAYER = {"mode": "default", "scope": "layer"}
DROPPING = Workload(
    model="tiny",
    model_kind=ModelKind.SHAPE,
    config=SHAPES["tiny"] | {"num_hidden_layers": 4},
    lengths=Lengths.fixed(128),
    batch_size=8,
    dropout=0.05,
)


def twins(records: list[TrialRecord] | None = None, budget: int = 24, **changes: Any) -> Twins:
    study = study_of(workload=DROPPING.model_copy(update=changes))
    made = Requests(
        study="s", key="key", workload=study.workload, device_type="cuda", device_uuid="GPU-1",
        limits=limits(budget * GIB, 80 * GIB, "cuda"), deadlines={}, seed=0, root=Path("studies"),
    )  # fmt: skip
    return Twins(study, CUDA, made, lambda key: [r for r in records or [] if r.key == key])


def asked(**values: Any) -> Proposal:
    found = twins().recomputed(canonical(values))
    assert found is not None
    return found


def finding(outcome: Outcome, test: Proposal, **changes: Any) -> TrialRecord:
    """The record of a test."""
    key = twins().key(test)
    usual = {"key": key, "role": "twin", "source": test.source, "twin": test.twin, "tokens_per_s": None}
    return record_of(outcome, test.strategy, **usual | changes)


def test_what_recomputes_is_compared_with_the_same_that_does_not() -> None:
    test = asked(**LAYER, activation_memory_budget=0.4)
    assert test.role == "twin" and test.strategy == canonical({**LAYER, "activation_memory_budget": 0.4})
    assert test.twin == canonical(LAYER)
    assert asked(checkpointing="every-block").twin == canonical({})
    sliced = test.workload
    assert sliced is not None and (sliced.layers, sliced.batch_size, sliced.dropout) == (2, 1, 0.05)


@pytest.mark.parametrize("values", [{}, LAYER, {"optimizer": "adamw-8bit"}])
def test_what_does_not_recompute_needs_no_test(values: dict[str, Any]) -> None:
    assert twins().recomputed(canonical(values)) is None


def test_without_dropout_nothing_needs_one() -> None:
    assert twins(dropout=0.0).recomputed(canonical({"checkpointing": "every-block"})) is None


def test_strategies_that_share_what_matters_share_a_test() -> None:
    amb = {**LAYER, "activation_memory_budget": 0.5}
    one = asked(**amb)
    process = next(k for k in KNOBS if k.name == "expandable_segments")
    for alike in ({"micro_batch": 4}, {"optimizer": "adamw-8bit"}, {process.name: process.values[-1]}):
        assert asked(**amb | alike) == one
    assert asked(**amb | {"mode": "max-autotune-no-cudagraphs"}) == one
    others = [{"mode": "reduce-overhead"}, {"scope": "whole"}, {"dynamic": "true"}, {"activation_memory_budget": 0.4}]
    assert all(asked(**amb | other) != one for other in others)


def test_a_model_that_cannot_be_cut_is_tested_whole() -> None:
    made = twins(config=None, model_kind=ModelKind.FUNCTION)
    test = made.recomputed(canonical({"checkpointing": "every-block"}))
    assert (
        test is not None and test.workload is not None and (test.workload.depth, test.workload.batch_size) == (None, 1)
    )
    assert made.against_eager(canonical(LAYER)) is None, "a whole model beside an eager one: it did not fit"


def test_a_slice_without_dropout_against_eager() -> None:
    found = twins().against_eager(canonical({**LAYER, "micro_batch": 4}))
    assert found is not None and found.workload is not None and found.twin == canonical({})
    assert (found.workload.dropout, found.workload.layers, found.workload.batch_size) == (0.0, 2, 8)
    assert found.strategy["micro_batch"] == 4, "what is proved is what is tested"
    assert twins().against_eager(canonical({})) is None, "it is what others are compared with"


def test_the_environment_of_the_process_is_both_strategies() -> None:
    knob = next(k for k in KNOBS if k.name == "expandable_segments")
    value = next(v for v in knob.values if v != knob.baseline)
    found = twins().against_eager(canonical({**LAYER, "expandable_segments": value}))
    assert found is not None and found.twin is not None and found.twin["expandable_segments"] == value


def test_it_is_found_again_by_slice_and_strategy() -> None:
    test = asked(**LAYER, activation_memory_budget=0.4)
    record = finding(Outcome.OK, test, study="another study", budget_bytes=8 * GIB)
    assert twins([record]).finding(test) == record
    assert twins([record]).finding(asked(**LAYER, activation_memory_budget=0.5)) is None
    assert twins([record.model_copy(update={"twin": canonical({})})]).finding(test) is None, "compared with another"
    assert twins([record]).key(test) != "key", "a slice has a key of its own"


FRAGMENTED = {"cap_bytes": 22 * GIB, "limit_bytes": 23 * GIB, "needed_bytes": 20 * GIB}
"""Of an out-of-memory that needed less than its cap."""


@pytest.mark.parametrize(("outcome", "changes"), [(Outcome.CRASH, {}), (Outcome.OOM, FRAGMENTED)])
def test_what_says_nothing_is_tried_again_and_not_for_ever(outcome: Outcome, changes: dict[str, Any]) -> None:
    test = asked(**LAYER, activation_memory_budget=0.9)
    made = twins([finding(outcome, test, **changes)])
    for _ in range(2):
        assert made.finding(test) is None
        made.add(finding(outcome, test, **changes))
    assert made.finding(test) is not None


def test_an_out_of_memory_decides_under_its_cap_alone() -> None:
    test = asked(**LAYER, activation_memory_budget=0.9)
    record = finding(Outcome.OOM, test, cap_bytes=6 * GIB, limit_bytes=7 * GIB, needed_bytes=9 * GIB)
    assert twins([record], budget=24).finding(test) is None
    assert twins([record], budget=8).finding(test) == record


@pytest.mark.parametrize("value", [0.4, 0.5])
def test_what_a_test_says_decides(value: float) -> None:
    strategy = canonical({**LAYER, "activation_memory_budget": value})
    test = asked(**strategy)
    assert twins().refusal(strategy, finding(Outcome.OK, test)) is None
    wrong = finding(Outcome.WRONG_RESULT, test, kind=Kind.NUMERICS, detail="the gradient differs")
    refused = twins().refusal(strategy, wrong)
    assert refused is not None and refused[:2] == (Outcome.WRONG_RESULT, Kind.NUMERICS)
    assert "the gradient differs" in refused[2]


def test_without_an_answer_only_what_is_known_to_be_wrong_is_refused() -> None:
    def refused(value: float) -> Any:
        strategy = canonical({**LAYER, "activation_memory_budget": value})
        made = twins()
        made.target = replace(CUDA, dropout=0.05)
        return made.refusal(strategy, finding(Outcome.OOM, asked(**strategy)))

    assert refused(0.4)[0] is Outcome.CONFLICT and "#190717" in refused(0.4)[2]
    assert refused(0.5) is None


def test_the_time_of_a_test_is_counted_until_it_is_decided() -> None:
    strategy = canonical({**LAYER, "activation_memory_budget": 0.9})
    test = asked(**strategy)
    assert twins().seconds(strategy) > 0
    assert twins().seconds(canonical(LAYER)) == 0
    made = twins([finding(Outcome.OK, test, seconds=20.0)])
    assert made.seconds(strategy) == 0
    other = {**strategy, "activation_memory_budget": 0.7}
    made.finding(asked(**other))
    assert 20 < made.seconds(other) < 30, "as long as those that were seen"
