"""Whole searches on a formula: what is launched, in which order, and how each kind of search ends."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from tests.fakes import landscape
from tests.tuner.searching import Bench, End, bench
from tests.tuner.test_storage import locked
from tuner import search as searches
from tuner.errors import ExitCode, Interrupted, MachineError, WrongInput
from tuner.outcome import Outcome
from tuner.protocol import TrialRequest
from tuner.space import canonical, describe, fingerprint

__all__ = ["bench"]
LAYER = {"mode": "default", "scope": "layer"}
LEAN_GB = 0.17
"""Both references die of memory, both of the leanest fit."""


def is_(request: TrialRequest, **values: Any) -> bool:
    return dict(request.strategy) == canonical(values)


def states(found: Any) -> list[TrialState]:
    return [trial.state for trial in found.session.search.handle.trials()]


# What is launched, and in which order.


def test_the_opening_then_the_sampler_then_the_proof(bench: Bench) -> None:
    found = bench.run(trials=12)
    assert found.heard.sources == [
        *("baseline", "checkpointing", "layer-amb", "layer-checkpointing", "layer"),
        *("checkpointing-largest", "checkpointing-largest", "leanest-eager", "leanest-whole", "whole"),
        *("tpe", "tpe", found.heard.sources[-1]),
    ]
    assert [number for number, _, _ in found.heard.begun] == [*range(12), "proof"]
    assert found.end.exit_code is ExitCode.DONE and found.end.reason == "all 12 trials were launched"
    assert found.heard.roles == ["search"] * 12 + ["proof"]
    assert states(found) == [TrialState.COMPLETE] * 12, "a proof is no trial of Optuna's"


def test_the_largest_micro_batch_by_the_line_through_two_peaks(bench: Bench) -> None:
    found = bench.run(trials=10, budget_gb=0.3)
    sizes = [r.strategy["micro_batch"] for r in found.heard.records if r.source == "recipe: checkpointing-largest"]
    # 150 MiB and 30 MiB a sequence under 298 MiB: the line through 1 and 2 says 4.9.
    assert sizes == [2, 4]
    assert all(r.outcome is Outcome.OK for r in found.heard.records if r.source == "recipe: checkpointing-largest")


def test_the_leanest_come_right_after_references_that_died_of_memory(bench: Bench) -> None:
    found = bench.run(trials=6, budget_gb=LEAN_GB)
    assert found.heard.sources[:5] == ["baseline", "checkpointing", "leanest-eager", "leanest-whole", "layer-amb"]
    assert found.heard.outcomes[:4] == [Outcome.OOM, Outcome.OOM, Outcome.OK, Outcome.OK]
    assert found.heard.sources.count("leanest-eager") == 1 and found.end.exit_code is ExitCode.DONE


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_no_strategy_is_launched_twice(bench: Bench, sampler: str) -> None:
    found = bench.run(trials=22, sampler=sampler)
    launched = [r.fingerprint for r in found.heard.records if r.role == "search"]
    assert len(launched) == len(set(launched)) == 22
    assert found.heard.roles[22:] == ["proof"]


def test_filters_leave_the_references_in_and_recipes_outside_out(bench: Bench) -> None:
    found = bench.run(trials=8, fix={"mode": "default"}, knob={"scope": ["layer", "mlp"]})
    assert found.heard.sources[:5] == ["baseline", "checkpointing", "layer-amb", "layer-checkpointing", "layer"]
    assert set(found.heard.sources[5:8]) == {"tpe"}
    assert all(r.strategy["mode"] == "default" for r in found.heard.records[2:])
    assert all(r.strategy["scope"] in ("layer", "mlp") for r in found.heard.records[2:])


def test_a_crash_is_tried_once_more_at_once(bench: Bench) -> None:
    crashes = {"baseline": 1, describe(canonical({"checkpointing": "every-block"})): 2}

    def answer(request: TrialRequest, _: bool) -> End | None:
        name = describe(request.strategy)
        crashes[name] = crashes.get(name, 0) - 1
        return End(crash=True) if crashes[name] >= 0 else None

    found = bench.run(answer, trials=5)
    assert found.heard.sources[:5] == ["baseline", "baseline", "checkpointing", "checkpointing", "layer-amb"]
    crash = Outcome.CRASH
    assert found.heard.outcomes[:5] == [crash, Outcome.OK, crash, crash, Outcome.OK]
    assert found.heard.roles[:5] == ["search", "retry", "search", "retry", "search"]
    assert states(found)[:4] == [TrialState.FAIL, TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED]


def test_the_second_run_of_the_last_trial_is_not_cut_off_by_the_count(bench: Bench) -> None:
    found = bench.run(lambda request, _: End(crash=True) if is_(request) else None, trials=1)
    assert found.heard.outcomes == [Outcome.CRASH, Outcome.CRASH]


def test_parity_is_taken_against_the_first_reference_that_ran(bench: Bench) -> None:
    def answer(request: TrialRequest, _: bool) -> End | None:
        return End(failure=("oom", "first_step")) if is_(request) else None

    found = bench.run(answer, trials=3)
    baseline, checkpointing, layer = found.heard.records[:3]
    reference = found.session.search.ledger.reference
    assert baseline.outcome is Outcome.OOM and checkpointing.result is not None
    assert reference(0, checkpointing.fingerprint) is None, "it is the reference itself"
    assert reference(0, layer.fingerprint) == checkpointing.result.parity


def test_a_step_that_differs_from_the_reference_is_no_winner(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = landscape.result

    def wrong(strategy: Any, *rest: Any) -> dict[str, Any]:
        fields: dict[str, Any] = usual(strategy, *rest)
        if strategy["scope"] == "layer" and "parity" in fields:
            fields["parity"]["gradient"] = [4.0, 3.0]
        return fields

    monkeypatch.setattr(landscape, "result", wrong)
    found = bench.run(trials=5)
    assert found.heard.outcomes[2:5] == [Outcome.WRONG_RESULT] * 3
    best = found.session.search.ledger.best()
    assert best is not None and best.strategy["mode"] == "off"


def test_another_seed_has_a_reference_of_its_own(bench: Bench) -> None:
    bench.run(trials=4)
    found = bench.run(trials=2, seed=7)
    assert found.heard.sources[:2] == ["baseline", "layer"]
    assert found.session.search.ledger.reference(7, "another") is not None


# How a search ends.


def test_the_space_is_exhausted(bench: Bench) -> None:
    fixed = {"mode": "default", "scope": "layer", "dynamic": "false", "fullgraph": "false", "optimizer": "adamw"}
    small = fixed | {"activation_memory_budget": 1.0, "expandable_segments": "off", "warmup_fraction": 1.0}
    found = bench.run(batch_size=2, fix=small)
    # Three ways of checkpointing at two micro-batches; the references lie outside.
    assert found.end.reason == "all 6 strategies of the space are known" and found.end.exit_code is ExitCode.DONE
    assert found.heard.roles == ["search"] * 8 + ["proof"]


@pytest.mark.parametrize("phase", ["start", "load"])
def test_out_of_memory_before_any_knob_ends_it_at_once(bench: Bench, phase: str) -> None:
    found = bench.run(lambda *_: End(failure=("oom", phase)))
    assert found.heard.outcomes == [Outcome.OOM] and found.end.exit_code is ExitCode.NOTHING_FITS
    assert found.end.reason == f"out of memory in {phase}, and no knob changes that"
    again = bench.run()
    assert again.heard.begun == [] and again.end == found.end, "it is known now"


def test_both_of_the_leanest_are_dead(bench: Bench) -> None:
    found = bench.run(budget_gb=0.12)
    assert found.heard.sources == ["baseline", "checkpointing", "leanest-eager", "leanest-whole"]
    assert found.end.exit_code is ExitCode.NOTHING_FITS
    assert found.end.reason == "the leanest strategies ran out of memory"
    again = bench.run(budget_gb=0.12)
    assert again.heard.begun == [] and again.end == found.end


def test_with_mode_off_the_eager_leanest_decides_alone(bench: Bench) -> None:
    found = bench.run(budget_gb=0.12, fix={"mode": "off"})
    assert found.heard.sources == ["baseline", "checkpointing", "leanest-eager"]
    assert found.end.exit_code is ExitCode.NOTHING_FITS
    assert found.end.reason == "the leanest strategies ran out of memory"


def test_references_and_recipes_that_all_end_alike(bench: Bench) -> None:
    found = bench.run(lambda *_: End(failure=("unstable", "steady")))
    # On a CPU the recipe with CUDA graphs is no strategy of its own: the next one is the third.
    assert found.end.exit_code is ExitCode.NO_VERDICT
    assert "all ended with unstable" in found.end.reason
    assert len(found.heard.begun) == 5


def test_recipes_that_end_in_different_ways_stop_nothing(bench: Bench) -> None:
    def answer(request: TrialRequest, _: bool) -> End:
        return End(failure=("compile_error" if request.strategy["mode"] != "off" else "unstable", "first_step"))

    found = bench.run(answer, trials=7)
    assert len(found.heard.begun) == 7 and found.end.exit_code is ExitCode.NO_VERDICT
    assert found.end.reason == "all 7 trials were launched"


def test_none_of_those_that_were_tried_fits_but_the_leanest_were_not(bench: Bench) -> None:
    found = bench.run(trials=2, budget_gb=0.12)
    assert found.heard.outcomes == [Outcome.OOM, Outcome.OOM] and found.end.exit_code is ExitCode.NO_VERDICT


def test_the_users_own_code_raises(bench: Bench) -> None:
    def answer(request: TrialRequest, _: bool) -> End | None:
        return End(failure=("user_code", "load"))

    with pytest.raises(WrongInput) as caught:
        bench.run(answer)
    assert str(caught.value) == "the user's code: fake.Error: made to end as user_code"
    assert caught.value.exit_code == 2 and "\n" not in str(caught.value)
    found = bench.run(trials=1)
    assert found.heard.sources == ["baseline"] * 2 and found.session.records.for_study(found.session.study.name) != []
    assert states(found) == [TrialState.FAIL, TrialState.COMPLETE]


def test_a_device_that_is_not_clean_three_times(bench: Bench) -> None:
    with pytest.raises(MachineError, match=r"not clean 3 times in a row: .*4711 train\.py") as caught:
        bench.run(lambda *_: End(foreign=True))
    assert caught.value.exit_code == 4
    assert bench.heard.outcomes == [Outcome.DEVICE_NOT_CLEAN] * 3


def test_a_device_that_is_not_clean_costs_the_strategy_nothing(bench: Bench) -> None:
    left = [True, True]
    found = bench.run(lambda *_: End(foreign=True) if left and left.pop() else None, trials=3)
    assert found.heard.sources[:5] == ["baseline"] * 3 + ["checkpointing", "layer-amb"]
    assert found.heard.outcomes[:3] == [Outcome.DEVICE_NOT_CLEAN] * 2 + [Outcome.OK]
    assert found.end.exit_code is ExitCode.DONE, "neither counts as one of three trials"


def test_a_signal_ends_the_running_trial_and_keeps_it(bench: Bench) -> None:
    came: list[int] = []

    def answer(request: TrialRequest, _: bool) -> End | None:
        if is_(request, checkpointing="every-block"):
            came.append(15)
        return None

    with bench.open(answer, stopped=lambda: bool(came)) as (opened, _), pytest.raises(Interrupted) as caught:
        opened.search.run()
    assert caught.value.exit_code == 130
    assert bench.heard.outcomes == [Outcome.OK, Outcome.INTERRUPTED]
    again = bench.run(trials=2)
    assert again.heard.begun[0][1:] == ("checkpointing=every-block", "reference: checkpointing")
    assert again.heard.sources[1] == "layer-amb"


def test_signs_of_life_are_given(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searches, "BEAT_SECONDS", 0.0)
    with bench.open(trials=1) as (opened, _):
        lease = opened.records.lease_holder(opened.study.name)
        assert lease is not None
        opened.search.run()
        after = opened.records.lease_holder(opened.study.name)
        assert after is not None and after.beat_at > lease.beat_at
    assert opened.records.lease_holder(opened.study.name) is None, "given back"


# Time.


def test_no_trial_starts_that_cannot_end_and_the_proof_has_its_time(bench: Bench) -> None:
    found = bench.run(lambda *_: End(seconds=30), time_budget="5m")
    assert found.heard.outcomes == [Outcome.OK] * len(found.heard.records), "none was cut off"
    assert found.heard.roles[-1] == "proof" and found.end.exit_code is ExitCode.DONE
    assert 6 <= len(found.heard.begun) <= 9
    assert "the rest of the time budget is too short for another trial" in found.end.reason
    assert bench.clock.now <= found.session.search.chooser.ends_at


def test_a_trial_that_takes_the_proofs_time_is_cut_off(bench: Bench) -> None:
    def answer(request: TrialRequest, proof: bool) -> End | None:
        return End(seconds=1000) if is_(request, **LAYER) and not proof else End(seconds=10)

    found = bench.run(answer, time_budget="5m")
    assert found.heard.records[-2].outcome is Outcome.INTERRUPTED and found.heard.records[-2].source == "recipe: layer"
    assert found.heard.roles[-1] == "proof" and found.heard.outcomes[-1] is Outcome.OK
    assert found.end.reason == "the time budget is used up" and found.end.exit_code is ExitCode.DONE


def test_the_first_reference_starts_in_any_time_and_is_cut_off_with_it(bench: Bench) -> None:
    found = bench.run(lambda *_: End(seconds=100), time_budget="20s")
    assert found.heard.outcomes == [Outcome.INTERRUPTED] and found.end.exit_code is ExitCode.NO_VERDICT
    again = bench.run(lambda *_: End(seconds=100), time_budget="10m", trials=1)
    assert again.heard.sources == ["baseline", "baseline"], "asked again, and proved"


def test_a_proof_for_which_no_time_is_left_is_said(bench: Bench) -> None:
    found = bench.run(lambda *_: End(seconds=100), time_budget="150s")
    assert found.heard.roles == ["search"] and found.end.exit_code is ExitCode.DONE
    assert any("no time is left for a proof" in message for message in found.heard.messages)


def test_a_proof_that_is_cut_off_refutes_nothing(bench: Bench) -> None:
    found = bench.run(lambda _, proof: End(seconds=9999 if proof else 5), trials=2, time_budget="5m")
    assert found.heard.outcomes == [Outcome.OK, Outcome.OK, Outcome.INTERRUPTED]
    assert found.end.exit_code is ExitCode.DONE and any("cut off" in m for m in found.heard.messages)
    best = found.session.search.ledger.best()
    assert best is not None and best.role == "search"


# The proof.


def test_the_proof_has_a_cold_cache_of_its_own(bench: Bench) -> None:
    found = bench.run(trials=3)
    (*trials, (proof, folder)) = found.executor.requests
    assert len({request.cache_dir for request, _ in trials}) == 1
    assert proof.cache_dir == str(folder.path.resolve() / "compile-cache")
    assert proof.strategy == trials[2][0].strategy and proof.cap_bytes == trials[2][0].cap_bytes


def test_with_cold_every_trial_has_its_own(bench: Bench) -> None:
    found = bench.run(trials=3, cold=True)
    assert len({request.cache_dir for request, _ in found.executor.requests}) == 4


def test_a_proof_that_falls_behind_the_next_one_has_the_next_one_proved(bench: Bench) -> None:
    def answer(request: TrialRequest, proof: bool) -> End | None:
        return End(scale=0.5) if proof and is_(request, **LAYER) else None

    found = bench.run(answer, trials=5)
    proofs = [r for r in found.heard.records if r.role == "proof"]
    assert [describe(r.strategy) for r in proofs] == [
        "mode=default, scope=layer",
        "mode=default, scope=layer, activation_memory_budget=0.9",
    ]
    best = found.session.search.ledger.best()
    assert best is not None and best.uuid == proofs[1].uuid


@pytest.mark.parametrize(("end", "proofs"), [(End(failure=("oom", "first_step")), 2), (End(crash=True), 3)])
def test_a_proof_that_fails_takes_the_strategy_out(bench: Bench, end: End, proofs: int) -> None:
    def answer(request: TrialRequest, proof: bool) -> End | None:
        return end if proof and is_(request, **LAYER) else None

    found = bench.run(answer, trials=5)
    assert found.heard.roles[5:] == ["proof"] * proofs and found.heard.outcomes[-1] is Outcome.OK
    best = found.session.search.ledger.best()
    assert best is not None and best.strategy["activation_memory_budget"] == 0.9
    assert found.end.exit_code is ExitCode.DONE


def test_a_proof_that_crashed_once_and_then_ran_is_the_answer(bench: Bench) -> None:
    crashes = [True]

    def answer(request: TrialRequest, proof: bool) -> End | None:
        return End(crash=True) if proof and crashes and crashes.pop() else None

    found = bench.run(answer, trials=3)
    assert found.heard.roles[-2:] == ["proof", "proof"]
    best = found.session.search.ledger.best()
    assert best is not None and best.uuid == found.heard.records[-1].uuid and best.role == "proof"


def test_a_proof_that_timed_out_is_tried_again_with_more_time(bench: Bench) -> None:
    def answer(request: TrialRequest, proof: bool) -> End | None:
        return End(deadline=True) if proof else None

    first = bench.run(answer, trials=3, fix={"mode": "off"})
    assert {r.outcome for r in first.heard.records if r.role == "proof"} == {Outcome.TIMEOUT}
    same = bench.run(trials=1, fix={"mode": "off"})
    refuted = {r.fingerprint for r in first.heard.records if r.role == "proof"}
    assert not refuted & {r.fingerprint for r in same.heard.records if r.role == "proof"}
    longer = bench.run(trials=1, fix={"mode": "off"}, deadline={"load": 9999.0})
    best = longer.session.search.ledger.best()
    assert best is not None and best.role == "proof" and best.fingerprint in refuted


def test_what_is_proved_is_not_proved_again(bench: Bench) -> None:
    bench.run(trials=3)
    assert bench.run(trials=1, fix={"mode": "off"}).heard.roles == ["search"]


# Going on.


def test_the_same_command_goes_on(bench: Bench) -> None:
    first = bench.run(trials=4)
    second = bench.run(trials=4)
    assert first.session.study.name == second.session.study.name
    assert second.heard.sources[:4] == ["layer", "checkpointing-largest", "checkpointing-largest", "leanest-eager"]
    numbers = [r.number for r in second.session.records.for_study(second.session.study.name) if r.role == "search"]
    assert numbers == list(range(8))


def test_another_time_or_filter_goes_on_in_the_same_study(bench: Bench) -> None:
    first = bench.run(trials=3)
    second = bench.run(trials=3, time_budget="40m", fix={"mode": "default"}, knob={"scope": "mlp"})
    assert first.session.study.name == second.session.study.name
    assert second.heard.sources[:3] == ["tpe"] * 3
    assert all(r.strategy["scope"] == "mlp" for r in second.heard.records[:3])


def test_what_was_interrupted_is_asked_again_only_within_the_filters(bench: Bench) -> None:
    def answer(request: TrialRequest, _: bool) -> End | None:
        return End(seconds=9999) if is_(request, **LAYER) else End(seconds=1)

    first = bench.run(answer, time_budget="2m")
    assert first.heard.records[-2].outcome is Outcome.INTERRUPTED
    second = bench.run(trials=1, fix={"mode": "off"})
    assert second.heard.records[0].strategy["mode"] == "off"
    third = bench.run(trials=1)
    assert third.heard.begun[0][1:] == ("mode=default, scope=layer", "recipe: layer")


def test_a_study_of_another_budget_begins_with_the_records_that_decide(bench: Bench) -> None:
    first = bench.run(trials=12)
    second = bench.run(trials=3, budget_gb=0.2)
    assert first.session.study.name != second.session.study.name
    taken = [t for t in second.session.search.handle.trials() if "uuid" in t.user_attrs]
    limit = second.session.study.limit_bytes
    fit = {r.fingerprint for r in first.heard.records if (r.peak_device_bytes or 0) <= limit}
    assert {t.user_attrs["fingerprint"] for t in taken[: len(fit)]} == fit
    launched = {r.fingerprint for r in second.heard.records if r.role == "search"}
    assert launched and not launched & fit, "what is known is not measured again"
    assert second.heard.begun[0][1] == "baseline", "its peak is above this limit, so it is not known"
    assert second.heard.outcomes[0] is Outcome.OOM


def test_a_database_that_is_locked_for_a_while_loses_nothing(bench: Bench) -> None:
    with bench.open(trials=6) as (opened, _):
        path = Path("studies/tuner.db").resolve()
        with locked(path, 2.0):
            end = opened.search.run()
    assert end.exit_code is ExitCode.DONE
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT number, outcome FROM tuner_trial ORDER BY id").fetchall()
    assert rows == [*((number, "ok") for number in range(6)), (None, "ok")]
    assert [t.state for t in bench.run(trials=1).session.search.handle.trials()][:6] == [TrialState.COMPLETE] * 6


def test_equivalents_of_what_ran_are_not_proposed(bench: Bench) -> None:
    found = bench.run(trials=3)
    layer = found.heard.records[2]
    whole_graph = fingerprint({**layer.strategy, "fullgraph": True})
    assert whole_graph in found.session.search.handle.known, "without a graph break it gives the same"


def test_an_out_of_memory_in_one_scope_prunes_neither_another_nor_eager(bench: Bench) -> None:
    # Compiled and checkpointed can need more than eager and checkpointed: nothing follows from the one for the other.
    def whole_dies(request: TrialRequest, _: bool) -> End | None:
        whole = request.strategy["mode"] != "off" and request.strategy["scope"] == "whole"
        return End(failure=("oom", "first_step")) if whole else None

    knob = {"mode": ["off", "default"], "scope": ["whole", "layer"], "checkpointing": ["off", "every-block"]}
    fix = {"dynamic": "false", "fullgraph": "false", "optimizer": "adamw", "micro_batch": 1, "warmup_fraction": 1.0}
    found = bench.run(whole_dies, knob=knob, fix=fix | {"activation_memory_budget": 1.0}, time_budget="1h")
    ran = {(r.strategy["mode"], r.strategy["scope"], r.strategy["checkpointing"]) for r in found.heard.records}
    for checkpointing in ("off", "every-block"):
        assert {("default", "whole", checkpointing), ("default", "layer", checkpointing)} <= ran
        assert any(mode == "off" and way == checkpointing for mode, _, way in ran)


# A planned run


def test_a_planned_run_decides_what_is_proved_and_nothing_else(bench: Bench) -> None:
    short = bench.run(trials=12, train_steps=10)
    (proof,) = [r for r in short.heard.records if r.role == "proof"]
    assert proof.strategy["mode"] == "off", "ten steps of a second do not pay for a minute"
    assert short.heard.best[-1] == proof
    told = [trial.value for trial in short.session.search.handle.trials()]
    assert told == pytest.approx([landscape.speed(dict(r.strategy)) for r in short.heard.records[:12]])
    longer = bench.run(trials=1, train_steps=100_000)
    assert longer.session.study.name == short.session.study.name, "the same study goes on"
    assert longer.heard.records[-1].role == "proof" and longer.heard.records[-1].strategy["mode"] != "off"


def test_the_same_strategies_are_tried_whatever_run_is_planned(bench: Bench, tmp_path: Path) -> None:
    tried = []
    for steps in (None, 10):
        folder = tmp_path / str(steps)
        folder.mkdir()
        bench.monkeypatch.chdir(folder)
        tried.append(bench.run(trials=14, train_steps=steps).heard.strategies[:14])
    assert tried[0] == tried[1]
