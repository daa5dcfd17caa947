"""A search whose strategies have to pass a twin test first."""

from __future__ import annotations

from typing import Any

import pytest
from optuna.trial import TrialState

from tests.tuner.searching import Bench, End, bench
from tuner.errors import Interrupted
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


def dies(request: TrialRequest, proof: bool) -> End | None:
    """No twin test comes to its end."""
    return End(failure=("oom", "first_step")) if request.twin is not None else None


def test_what_its_test_said_nothing_of_is_left_out_and_not_charged(bench: Bench) -> None:
    found = bench.run(dies, **DROPPING)
    ended = {r.strategy["activation_memory_budget"]: r for r in found.heard.records if r.role == "search"}
    assert ended[0.9].outcome is Outcome.OK
    assert 0.4 not in ended, "nothing was found of it, so nothing is kept of it"
    (said,) = [m for m in found.heard.messages if m.startswith("left out of this search")]
    assert "activation_memory_budget=0.4" in said and "#190717" in said and "ended with oom" in said
    assert found.end.reason.endswith("strategies of the space are known, but for 1 that were left out")
    # With more memory the test says something, and nothing stands against the strategy.
    again = bench.run(**DROPPING | {"budget_gb": 2})
    ended = {r.strategy["activation_memory_budget"]: r for r in again.heard.records if r.role == "search"}
    assert ended[0.4].outcome is Outcome.OK


def test_what_was_left_out_for_a_device_that_was_not_clean_is_tested_by_the_next_search(bench: Bench) -> None:
    met: list[TrialRequest] = []

    def others(request: TrialRequest, proof: bool) -> End | None:
        if request.twin is None or request.strategy["activation_memory_budget"] != 0.4:
            return None
        met.append(request)
        return End(foreign=True)

    only = DROPPING | {"fix": FIXED | {"activation_memory_budget": 0.4}, "knob": {}}
    bench.run(others, **only)
    assert len(met) == 2, "once more, and not for ever"
    again = bench.run(**only)
    ended = [r for r in again.heard.records if r.strategy["activation_memory_budget"] == 0.4]
    assert [(r.role, r.outcome) for r in ended][:2] == [("twin", Outcome.OK), ("search", Outcome.OK)]


def test_all_that_share_a_failed_test_are_ruled_out_at_once(bench: Bench) -> None:
    fix = {k: v for k, v in FIXED.items() if k not in ("micro_batch", "optimizer")} | {"activation_memory_budget": 0.4}
    found = bench.run(masks_drawn_anew, **DROPPING | {"fix": fix, "knob": {}})
    refused = [r for r in found.session.search.ledger.records if r.twin_uuid]
    sharing = len(found.session.search.handle.sampler.space)
    assert len(refused) == 1 < sharing, "one is asked, told and kept"
    said = f"{sharing - 1} more strategies are not launched either, sharing its test"
    assert found.heard.messages.count(said) == 1
    assert found.end.reason == f"all {sharing} strategies of the space are known"


def test_the_users_function_may_refuse_a_slice(bench: Bench) -> None:
    def one_sequence_alone(request: TrialRequest, proof: bool) -> End | None:
        return End(failure=("user_code", "load")) if request.twin is not None else None

    found = bench.run(one_sequence_alone, **DROPPING)
    ended = {r.strategy["activation_memory_budget"]: r for r in found.heard.records if r.role == "search"}
    assert ended[0.9].outcome is Outcome.OK and 0.4 not in ended
    tested = [(str(r.strategy), str(r.twin)) for r in twin_tests(found.executor)]
    assert len(set(tested)) == len(tested), "it would raise again"


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


def test_a_winner_whose_recomputing_was_not_tested_stays_unchecked(bench: Bench) -> None:
    def silent(request: TrialRequest, proof: bool) -> End | None:
        drops = request.twin is not None and request.workload.dropout > 0
        return End(failure=("oom", "first_step")) if drops else None

    fix = FIXED | {"activation_memory_budget": 0.9}
    faster = {"scale": 3.0}

    def answer(request: TrialRequest, proof: bool) -> End | None:
        amb = request.strategy["activation_memory_budget"] == 0.9 and request.twin is None
        return End(**faster) if amb else silent(request, proof)

    found = bench.run(answer, **DROPPING | {"fix": fix, "knob": {}})
    proof = found.heard.records[-1]
    assert (proof.role, proof.strategy["activation_memory_budget"]) == ("proof", 0.9)
    sliced = [r for r in found.heard.records if r.role == "twin" and r.source == "slice: eager"]
    assert [r.outcome for r in sliced] == [Outcome.OK]
    assert Flag.UNCHECKED in proof.flags and Flag.CHECKED_ON_SLICE not in proof.flags
    assert "its twin test ended with oom" in proof.detail


def test_a_reference_at_full_depth_needs_no_slice(bench: Bench) -> None:
    found = bench.run(fix=FIXED)
    assert twin_tests(found.executor) == []
    assert not {Flag.CHECKED_ON_SLICE, Flag.UNCHECKED} & set(found.heard.records[-1].flags)


# Time, and being stopped.


def test_a_dropped_proposal_gives_the_search_a_look_around(bench: Bench) -> None:
    """Signal and lease are looked at between two that are let go."""
    looks: list[int] = []

    def stopped() -> bool:
        looks.append(len(bench.heard.messages))
        return False

    with bench.open(stopped=stopped, **DROPPING | {"knob": {"activation_memory_budget": [0.9, 0.7, 0.5]}}) as (
        opened,
        _,
    ):
        gate = opened.search.gate
        gate.fits = lambda _: False
        opened.search.run()
    said = [i for i, text in enumerate(bench.heard.messages) if text.startswith("no time left for")]
    assert len(said) > 3
    assert all(i + 1 in looks for i in said)


def test_the_time_is_looked_at_again_after_a_test(bench: Bench) -> None:
    with bench.open(**DROPPING) as (opened, executor):
        gate = opened.search.gate
        gate.fits = lambda _: not twin_tests(executor)
        opened.search.run()
    dropping = [request for request in twin_tests(executor) if request.workload.dropout > 0]
    assert len(dropping) == 1
    waited = dropping[0].strategy
    assert waited["checkpointing"] == "every-block"
    assert all(r.strategy["checkpointing"] == "off" for r in full_depth(executor))
    refused = "no time left for reference: checkpointing (checkpointing=every-block): it takes about "
    assert any(message.startswith(refused) for message in bench.heard.messages)


def test_what_waits_for_a_test_that_is_stopped_is_asked_again(bench: Bench) -> None:
    only = DROPPING | {"fix": FIXED | {"activation_memory_budget": 0.7}, "knob": {}}
    stopping: list[bool] = []

    def stop_it(request: TrialRequest, proof: bool) -> End | None:
        if request.twin is not None and request.strategy["activation_memory_budget"] == 0.7:
            stopping.append(True)
        return None

    with bench.open(stop_it, stopped=lambda: bool(stopping), **only) as (opened, _), pytest.raises(Interrupted):
        opened.search.run()
    (last,) = [t for t in opened.search.handle.trials() if t.user_attrs.get("outcome") == "interrupted"]
    assert last.state is TrialState.FAIL
    with bench.open(**DROPPING | {"knob": {}}) as (again, _):
        assert [p.strategy["activation_memory_budget"] for p in again.search.chooser._again] == [0.7]
