"""The twin test that a single run makes under dropout, where none was made here."""

from __future__ import annotations

import pytest

from tests.tuner.searching import Bench, End, bench
from tests.tuner.test_run_again import LAYER, recorded, run, searched
from tuner.errors import Interrupted, MachineError, WrongInput
from tuner.outcome import Outcome
from tuner.plan import ExportedPlan
from tuner.protocol import TrialRequest
from tuner.space import canonical

__all__ = ["bench"]


class Masks:
    """Answers of a machine on which some activation memory budgets draw dropout masks anew."""

    def __init__(self, *wrong: float, test: End | None = None) -> None:
        self.wrong, self.test = wrong, test
        self.tests: list[float] = []

    def __call__(self, request: TrialRequest, _: bool) -> End | None:
        if request.twin is None:
            return None
        value = request.strategy["activation_memory_budget"]
        assert isinstance(value, float)
        self.tests.append(value)
        return End(gradient=(4.0, 3.0)) if value in self.wrong else self.test


def amb(plan: ExportedPlan, value: float) -> ExportedPlan:
    return plan.model_copy(update={"strategy": canonical({**LAYER, "activation_memory_budget": value})})


def test_under_dropout_a_run_makes_the_twin_test_that_is_open(bench: Bench) -> None:
    _, plan = searched(bench, dropout=0.05, answer=Masks(0.9))
    answer = Masks(0.4)
    with pytest.raises(WrongInput, match=r"cannot work here: found on 2 layers .*differs from its twin's"):
        run(bench, amb(plan, 0.9), answer)
    assert answer.tests == [], "the search has made it"
    with pytest.raises(WrongInput, match=r"cannot work here: found on 2 layers .*differs from its twin's") as caught:
        run(bench, amb(plan, 0.4), answer)
    assert "activation_memory_budget=0.4" in str(caught.value)
    record, heard = run(bench, amb(plan, 0.3), answer)
    assert record.outcome is Outcome.OK and answer.tests == [0.4, 0.3]
    assert heard.messages[-2] == (
        "there is dropout, and what recomputes is compared first: a twin test of about 11.0 s"
    )
    assert heard.messages[-1].startswith("twin test: ok, the loss differs by 0.00%")
    assert heard.roles == ["run"], "one record is what --json prints"


def test_a_runs_twin_test_is_made_once_for_these_versions(bench: Bench) -> None:
    _, plan = searched(bench, dropout=0.05)
    answer = Masks(0.4)
    for _ in range(2):
        with pytest.raises(WrongInput, match="cannot work here: found on 2 layers"):
            run(bench, amb(plan, 0.4), answer)
        run(bench, amb(plan, 0.3), answer)
    assert answer.tests == [0.4, 0.3]


def test_a_run_elsewhere_makes_its_own_test(bench: Bench) -> None:
    _, plan = searched(bench, dropout=0.05)
    answer, flags = Masks(0.4), {"storage": "sqlite:///else/where.db"}
    with pytest.raises(WrongInput, match="cannot work here: found on 2 layers"):
        run(bench, amb(plan, 0.4), answer, flags=flags)
    record, _ = run(bench, amb(plan, 0.9), answer, flags=flags)
    assert record.outcome is Outcome.OK and answer.tests == [0.4, 0.9]
    assert record.study == f"runs-{record.key[:8]}"


def test_a_test_that_says_nothing_leaves_what_is_known_without_one(bench: Bench) -> None:
    _, plan = searched(bench, dropout=0.05)
    crashes = Masks(test=End(crash=True))
    with pytest.raises(WrongInput, match=r"cannot work here: .*no twin test says otherwise here"):
        run(bench, amb(plan, 0.3), crashes)
    assert crashes.tests == [0.3, 0.3], "what crashed is tried once more"
    record, heard = run(bench, amb(plan, 0.6), crashes)
    doubt = "under dropout what it recomputes was compared with nothing: its twin test ended with crash"
    assert record.outcome is Outcome.OK and doubt in record.detail and doubt in heard.messages


def test_a_twin_test_of_a_run_that_is_cut_off(bench: Bench) -> None:
    _, plan = searched(bench, dropout=0.05)
    with pytest.raises(MachineError, match=r"4711 train\.py"):
        run(bench, amb(plan, 0.6), Masks(test=End(foreign=True)))
    with pytest.raises(Interrupted, match="the twin test was not made to its end"):
        run(bench, amb(plan, 0.6), Masks(test=End(seconds=9999)), stopped=lambda: True)
    assert recorded(plan.study)[-1].role != "run"


def test_a_machine_that_cannot_make_the_test(bench: Bench) -> None:
    _, plan = searched(bench, dropout=0.05)
    with pytest.raises(MachineError, match="made to end as environment"):
        run(bench, amb(plan, 0.6), Masks(test=End(failure=("environment", "load"))))


def test_without_dropout_a_run_has_no_twin_test(bench: Bench) -> None:
    _, plan = searched(bench)
    answer = Masks()
    record, _ = run(bench, amb(plan, 0.4), answer)
    assert record.outcome is Outcome.OK and answer.tests == []
