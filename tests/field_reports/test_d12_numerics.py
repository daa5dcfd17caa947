"""D12: compiled training that is worse than eager; dropout is no such thing."""

from __future__ import annotations

import pytest

from tests.field_reports.running import LAYER, run, users
from tuner.kinds import Flag, Kind
from tuner.outcome import Outcome

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
