"""D12: compiled training that is worse than eager; dropout is no such thing."""

from __future__ import annotations

import pytest

from tests.field_reports.running import LAYER, run, users
from tests.tuner.worker.workloads import measurement
from tuner.kinds import Flag, Kind
from tuner.outcome import Outcome, classify_twin
from tuner.protocol import Attempt
from tuner.space import canonical
from tuner.worker.__main__ import make_result
from tuner.worker.twin import TwinTest

pytestmark = pytest.mark.usefixtures("quick_compile")


def test_nan_only_when_compiled() -> None:
    eager, compiled = run(users("nan_when_compiled")), run(users("nan_when_compiled"), **LAYER)
    assert eager.verdict().outcome is Outcome.OK
    verdict = compiled.verdict(eager.result.parity)
    assert (verdict.outcome, verdict.kind) == (Outcome.WRONG_RESULT, Kind.NAN)
    assert compiled.result.throughput is None


def test_another_loss_when_compiled() -> None:
    eager, compiled = run(users("worse_when_compiled")), run(users("worse_when_compiled"), **LAYER)
    verdict = compiled.verdict(eager.result.parity)
    assert (verdict.outcome, verdict.kind) == (Outcome.WRONG_RESULT, Kind.NUMERICS)


def test_another_loss_in_a_later_step() -> None:
    eager, compiled = run(users("worse_from_the_second_step")), run(users("worse_from_the_second_step"), **LAYER)
    parity = eager.result.parity
    assert parity is not None and len(parity.losses) == 4
    verdict = compiled.verdict(parity)
    assert (verdict.outcome, verdict.kind) == (Outcome.WRONG_RESULT, Kind.NUMERICS)
    assert "the loss of step 2 differs" in verdict.detail


def test_nan_comes_with_its_step() -> None:
    verdict = run(users("nan_from_the_third_step")).verdict()
    assert (verdict.outcome, verdict.kind) == (Outcome.WRONG_RESULT, Kind.NAN)
    assert "the loss of step 3 is not a finite number" in verdict.detail


def test_the_same_step_is_no_alarm() -> None:
    eager, compiled = run(users("plain")), run(users("plain"), **LAYER)
    verdict = compiled.verdict(eager.result.parity)
    assert (verdict.outcome, verdict.kind) == (Outcome.OK, None) and Flag.UNCHECKED not in verdict.flags


def test_dropout_is_no_alarm() -> None:
    workload = users("dropping", dropout=0.1)
    eager, compiled = run(workload), run(workload, **LAYER)
    assert eager.result.parity is not None and compiled.result.parity is not None
    verdict = compiled.verdict(eager.result.parity)
    assert (verdict.outcome, verdict.kind) == (Outcome.OK, None)
    assert Flag.UNCHECKED in verdict.flags, "nothing could be compared, and it says so"


def test_whether_masks_are_drawn_anew_is_asked_of_a_twin() -> None:
    """What torch itself draws anew is in tests/tuner/worker/test_twin.py; here is the healthy control."""
    made = measurement(users("dropping", dropout=0.1), [], checkpointing="every-block", micro_batch=8)
    made.request = made.request.model_copy(update={"twin": canonical({"micro_batch": 8})})
    TwinTest(made).run()
    attempt = Attempt(
        request=made.request, exit_code=0, result=make_result(made.request, made, None), started_at=0.0, seconds=1.0
    )
    assert classify_twin(attempt).outcome is Outcome.OK
