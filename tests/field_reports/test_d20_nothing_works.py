"""D20: every trial fails, and the search says why."""

from __future__ import annotations

import pytest

from tests.tuner.made import record_of, study_of
from tests.tuner.searching import Bench, End, Searched, bench
from tuner.errors import ExitCode
from tuner.kinds import Kind, Phase
from tuner.outcome import Outcome
from tuner.report import Report, summary
from tuner.verdict import verdict

__all__ = ["bench"]


def report_of(found: Searched) -> Report:
    return summary(found.session.search.ledger.study, found.heard.records)


def test_a_budget_too_small_has_its_own_exit_code_and_the_nearest_miss(bench: Bench) -> None:
    found = bench.run(budget_gb=0.12)
    assert found.end.exit_code is ExitCode.NOTHING_FITS
    report = report_of(found)
    assert report.winner is None and report.nearest_miss is not None
    assert report.nearest_miss.missed_by_bytes > 0 and report.nearest_miss.at_least
    assert {c.outcome for c in report.causes} == {Outcome.OOM} and report.causes[0].phase is Phase.FIRST_STEP
    assert sum(c.count for c in report.causes) == len(found.heard.records)


@pytest.mark.parametrize("failure", ["wrong_result", "compile_error", "unstable"])
def test_one_cause_for_all_stops_early_and_is_said(bench: Bench, failure: str) -> None:
    found = bench.run(lambda *_: End(failure=(failure, "first_step")), trials=40)
    assert found.end.exit_code is ExitCode.NO_VERDICT and f"all ended with {failure}" in found.end.reason
    assert len(found.heard.records) == 5
    (cause,) = report_of(found).causes
    assert (cause.outcome, cause.phase, cause.count) == (Outcome(failure), Phase.FIRST_STEP, 5)


def test_different_causes_are_a_table(bench: Bench) -> None:
    kinds = iter(["compile_error", "unstable"] * 20)
    found = bench.run(lambda *_: End(failure=(next(kinds), "settle")), trials=8)
    assert found.end.exit_code is ExitCode.NO_VERDICT
    assert {(c.outcome, c.count) for c in report_of(found).causes} == {
        (Outcome.COMPILE_ERROR, 4),
        (Outcome.UNSTABLE, 4),
    }


def test_a_study_without_a_trial_that_is_ok_has_an_answer_and_no_best() -> None:
    study, records = study_of(), [record_of(Outcome.WRONG_RESULT, {}, kind=Kind.NAN, phase=Phase.FIRST_STEP)]
    assert verdict(study, records) is ExitCode.NO_VERDICT
    report = summary(study, records)
    assert report.winner is None and report.answer and report.causes[0].kind is Kind.NAN
