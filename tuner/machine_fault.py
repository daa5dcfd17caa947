"""What ended an attempt that is the machine's doing, and no strategy's."""

from __future__ import annotations

from tuner.errors import full_disk
from tuner.kinds import FailureClass
from tuner.protocol import Attempt


def machine_fault(attempt: Attempt) -> str | None:
    """Return one phrase for what the machine is missing; None: it is not known to be the machine.

    A worker that can write nothing any more leaves no result, so its log is asked then.
    """
    result = attempt.result
    if result is not None:
        failure = result.failure
        is_machines = failure is not None and failure.failure_class is FailureClass.ENVIRONMENT
        return failure.detail if failure is not None and is_machines else None
    return None if attempt.kill_reason is not None else full_disk(attempt.tail)
