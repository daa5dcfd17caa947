"""D17: out of memory that is not an OutOfMemoryError; the control has the same error without the warning."""

from __future__ import annotations

import pytest

from tests.field_reports.models import ALLOCATOR_SAYS
from tests.field_reports.running import LAYER, run, users
from tuner.kinds import FailureClass, Kind, Phase
from tuner.outcome import Outcome, classify, user_error

pytestmark = pytest.mark.usefixtures("quick_compile")


def test_the_allocators_warning_makes_it_suspected(capfd: pytest.CaptureFixture[str]) -> None:
    found = run(users("refused"), **LAYER)
    verdict = found.verdict(tail=capfd.readouterr().err)
    assert (verdict.outcome, verdict.kind, verdict.phase) == (Outcome.OOM, Kind.SUSPECTED, Phase.SETTLE)
    assert ALLOCATOR_SAYS in verdict.detail and "RuntimeError" in verdict.detail
    failure = found.result.failure
    assert failure is not None and failure.step == 3, "the fourth forward is the third step of settle"
    assert "API call failed at wrapper line 1024" in failure.traceback


def test_so_does_it_in_an_eager_trial_where_the_users_own_function_raised(capfd: pytest.CaptureFixture[str]) -> None:
    found = run(users("refused"))
    failure = found.result.failure
    assert failure is not None and failure.failure_class is FailureClass.USER_CODE
    attempt = found.attempt.model_copy(update={"tail": capfd.readouterr().err})
    assert user_error(attempt) is None, "it is no wrong input"
    verdict = classify(attempt)
    assert (verdict.outcome, verdict.kind, verdict.phase) == (Outcome.OOM, Kind.SUSPECTED, Phase.SETTLE)
    assert ALLOCATOR_SAYS in verdict.detail


def test_without_the_warning_it_stays_the_users_error(capfd: pytest.CaptureFixture[str]) -> None:
    found = run(users("failing"))
    said = user_error(found.attempt.model_copy(update={"tail": capfd.readouterr().err}))
    assert said is not None and "API call failed at wrapper line 1024" in said


def test_the_same_error_without_it_stays_a_crash(capfd: pytest.CaptureFixture[str]) -> None:
    verdict = run(users("failing"), **LAYER).verdict(tail=capfd.readouterr().err)
    assert (verdict.outcome, verdict.kind) == (Outcome.CRASH, None)
    assert verdict.detail == "RuntimeError: API call failed at wrapper line 1024"
