"""A search whose strategies have to pass a twin test first."""

from __future__ import annotations

from typing import Any

from optuna.trial import TrialState

from tests.tuner.searching import Bench, End, bench
from tuner.kinds import Flag, Kind
from tuner.outcome import Outcome
from tuner.protocol import TrialRequest

__all__ = ["bench"]
WRONG = (4.0, 3.0)
FIXED = {"mode": "default", "scope": "layer", "dynamic": "false", "fullgraph": "false", "optimizer": "adamw"}
FIXED |= {"checkpointing": "off", "micro_batch": 1, "warmup_fraction": 1.0, "expandable_segments": "off"}
DROPPING: dict[str, Any] = {"dropout": 0.05, "fix": FIXED, "knob": {"activation_memory_budget": [1.0, 0.9, 0.4]}}


def masks_drawn_anew(request: TrialRequest, proof: bool) -> End | None:
    """0.4 fails its twin test."""
    small = float(request.strategy["activation_memory_budget"]) < 0.5
    return End(gradient=WRONG) if request.twin is not None and small else None


def full_depth(executor: Any) -> list[TrialRequest]:
    return [request for request, _ in executor.requests if request.twin is None]


def twin_tests(executor: Any) -> list[TrialRequest]:
    return [request for request, _ in executor.requests if request.twin is not None]


def test_masks_drawn_anew_are_found_before_any_full_depth_trial(bench: Bench) -> None:
    found = bench.run(masks_drawn_anew, **DROPPING)
    assert all(request.strategy["activation_memory_budget"] != 0.4 for request in full_depth(found.executor))
    wrong = [r for r in found.heard.records if r.outcome is Outcome.WRONG_RESULT]
    test, full = wrong
    assert test.role == "twin" and test.key != found.session.study.key
    assert (full.kind, full.key, full.twin_uuid) == (Kind.NUMERICS, found.session.study.key, test.uuid)
    assert "2 layers" in full.detail and full.seconds == 0
    told = [t for t in found.session.search.handle.trials() if t.user_attrs.get("uuid") == full.uuid]
    assert [t.state for t in told] == [TrialState.PRUNED]
    best = found.session.search.ledger.best()
    assert best is not None and best.strategy["activation_memory_budget"] == 1.0


def test_a_test_comes_right_before_its_strategy_and_is_no_trial(bench: Bench) -> None:
    found = bench.run(trials=3, **DROPPING)
    kinds = [r.role for r in found.heard.records]
    assert kinds[:4] == ["search", "twin", "search", "twin"], "the baseline recomputes nothing"
    assert kinds.count("search") == 3
    twin = twin_tests(found.executor)[0]
    assert twin.workload.depth == 2 and twin.workload.batch_size == 1
    assert twin.twin is not None and twin.strategy["checkpointing"] == "every-block"


def test_a_test_is_made_once_for_these_versions(bench: Bench) -> None:
    first = bench.run(masks_drawn_anew, **DROPPING)
    assert len(twin_tests(first.executor)) > 2
    again = bench.run(masks_drawn_anew, **DROPPING | {"budget_gb": 0.9})
    assert [r.strategy["mode"] for r in twin_tests(again.executor)] == []
    refused = [r for r in again.session.search.ledger.records if r.twin_uuid]
    assert len(refused) == 1, "what is known is not said again"


def test_without_dropout_nothing_is_tested(bench: Bench) -> None:
    found = bench.run(masks_drawn_anew, **DROPPING | {"dropout": 0.0})
    assert twin_tests(found.executor) == []
    assert {r.outcome for r in found.heard.records} == {Outcome.OK}


def test_a_test_that_says_nothing_refuses_only_what_is_known_to_be_wrong(bench: Bench) -> None:
    def dies(request: TrialRequest, proof: bool) -> End | None:
        return End(failure=("oom", "first_step")) if request.twin is not None else None

    found = bench.run(dies, **DROPPING)
    ended = {r.strategy["activation_memory_budget"]: r for r in found.heard.records if r.role == "search"}
    assert ended[0.4].outcome is Outcome.CONFLICT and "#190717" in ended[0.4].detail
    assert ended[0.9].outcome is Outcome.OK


def test_a_test_that_crashes_is_tried_once_more(bench: Bench) -> None:
    def crashes(request: TrialRequest, proof: bool) -> End | None:
        return End(crash=True) if request.twin is not None else None

    found = bench.run(crashes, trials=2, **DROPPING)
    assert found.heard.roles[:4] == ["search", "twin", "twin", "search"]


# Before a proof.


def no_eager_fits(request: TrialRequest, proof: bool) -> End | None:
    eager = request.strategy["mode"] == "off" and request.twin is None
    return End(failure=("oom", "first_step")) if eager else None


def test_where_no_eager_strategy_fits_the_winner_is_checked_on_a_slice(bench: Bench) -> None:
    found = bench.run(no_eager_fits, fix=FIXED)
    assert found.heard.roles[-2:] == ["twin", "proof"]
    (test,) = twin_tests(found.executor)
    assert (test.workload.depth, test.workload.dropout) == (2, 0.0)
    assert test.twin is not None and test.twin["mode"] == "off"
    proof = found.heard.records[-1]
    assert Flag.CHECKED_ON_SLICE in proof.flags and Flag.UNCHECKED not in proof.flags


def test_a_winner_that_fails_on_the_slice_is_none(bench: Bench) -> None:
    leaders: list[Any] = []

    def fails_first(request: TrialRequest, proof: bool) -> End | None:
        if request.twin is not None:
            leaders.append(request.strategy)
            return End(gradient=WRONG) if len(leaders) == 1 else None
        return no_eager_fits(request, proof)

    found = bench.run(fails_first, fix={k: v for k, v in FIXED.items() if k != "micro_batch"}, trials=8)
    best = found.session.search.ledger.best()
    assert best is not None and best.role == "proof" and best.strategy == leaders[1] != leaders[0]
    standing = found.session.search.ledger.standing(leaders[0])
    assert standing is not None and (standing.outcome, standing.kind) == (Outcome.WRONG_RESULT, Kind.NUMERICS)


def test_with_dropout_the_winner_is_checked_without(bench: Bench) -> None:
    found = bench.run(**DROPPING)
    test = twin_tests(found.executor)[-1]
    assert test.workload.dropout == 0 and test.workload.depth == 2
    assert Flag.CHECKED_ON_SLICE in found.heard.records[-1].flags


def test_a_reference_at_full_depth_needs_no_slice(bench: Bench) -> None:
    found = bench.run(fix=FIXED)
    assert twin_tests(found.executor) == []
    assert not {Flag.CHECKED_ON_SLICE, Flag.UNCHECKED} & set(found.heard.records[-1].flags)
