"""What is the machine's doing, and what is not."""

from __future__ import annotations

from tests.tuner.made import result_of
from tests.tuner.trials import attempt
from tuner.kinds import FailureClass, KillReason, Phase
from tuner.machine_fault import machine_fault
from tuner.protocol import Attempt, Failure

FULL = "OSError: [Errno 28] No space left on device: '/studies/s/0/result.json'"


def failed(failure_class: FailureClass, detail: str) -> Attempt:
    failure = Failure(failure_class=failure_class, phase=Phase.FIRST_STEP, type="x.Error", detail=detail)
    return attempt(result=result_of(failure=failure))


def test_what_the_worker_saw_itself() -> None:
    lost = failed(FailureClass.ENVIRONMENT, "the cache folder cannot be used: /cache: gone")
    assert machine_fault(lost) == "the cache folder cannot be used: /cache: gone"


def test_a_worker_that_could_not_write_its_result() -> None:
    assert machine_fault(attempt(exit_code=1, tail=f"a line\n{FULL}\n")) == FULL


def test_a_strategys_own_failure_is_not_the_machines() -> None:
    assert machine_fault(failed(FailureClass.COMPILE_ERROR, "InductorError: an assertion")) is None
    assert machine_fault(attempt(result=result_of(), tail=FULL)) is None, "it came to its end"
    assert machine_fault(attempt(exit_code=1, tail="KeyError: 'disk'")) is None
    assert machine_fault(attempt(exit_code=None, kill_reason=KillReason.DEADLINE, tail=FULL)) is None
