"""What ended a trial, with the place: the phase, the step, and what was being replayed."""

from __future__ import annotations

from tuner.kinds import FailureClass, Phase
from tuner.protocol import Failure
from tuner.worker.failure import NotWhatItSays, classify_exception
from tuner.worker.measurement import Measurement

_HAVE_STEPS = frozenset({Phase.FIRST_STEP, Phase.SETTLE, Phase.STEADY, Phase.LONGEST_BATCH})


def failure_of(error: BaseException, m: Measurement) -> Failure:
    """Return the `Failure` that `error` stands for, where the measurement is now."""
    # What measuring itself finds belongs to the step that has ended, all else to the one in progress.
    ended = m.step or 0
    step = (ended if isinstance(error, NotWhatItSays) else ended + 1) if m.phase in _HAVE_STEPS else None
    fullgraph = bool(m.request.strategy["fullgraph"])
    failure = classify_exception(error, m.phase, step, fullgraph, m.request.cache_dir)
    if m.replay is not None:
        # Named for what it is: not what training needs, and nothing that a smaller training batch would cure.
        return failure.model_copy(update={"replay": m.replay, "detail": f"{failure.detail}, {m.replay.words}"})
    if failure.failure_class is FailureClass.OOM:
        where = f"in step {step} of {m.phase}" if step is not None else f"in {m.phase}"
        return failure.model_copy(update={"detail": f"{failure.detail}, {where}"})
    return failure
