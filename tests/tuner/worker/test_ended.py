"""A failure with its place: step, phase and what was replayed."""

from __future__ import annotations

import pytest
import torch

from tests.tuner.worker.workloads import measurement, shaped
from tuner.kinds import FailureClass, Phase, Replay
from tuner.worker.ended import failure_of
from tuner.worker.failure import NotWhatItSays
from tuner.worker.measurement import Measurement

NO_MORE = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. ")


@pytest.fixture
def m() -> Measurement:
    made = measurement(shaped())
    made.phase, made.step = Phase.STEADY, 6
    return made


def test_an_out_of_memory_is_of_the_step_in_progress(m: Measurement) -> None:
    failure = failure_of(NO_MORE, m)
    assert (failure.phase, failure.step, failure.replay) == (Phase.STEADY, 7, None)
    assert failure.detail == "the allocator was asked for 2.00 GiB more, in step 7 of steady"


@pytest.mark.parametrize("phase", [Phase.START, Phase.LOAD, Phase.WARMUP_BATCH])
def test_no_step_where_there_are_none(m: Measurement, phase: Phase) -> None:
    m.phase, m.step = phase, None
    failure = failure_of(NO_MORE, m)
    assert (failure.step, failure.detail) == (None, f"the allocator was asked for 2.00 GiB more, in {phase}")


def test_what_measuring_finds_is_of_the_step_that_has_ended(m: Measurement) -> None:
    failure = failure_of(NotWhatItSays(FailureClass.UNSTABLE, None, "it rises"), m)
    assert (failure.step, failure.detail) == (6, "it rises")


@pytest.mark.parametrize("error", [NO_MORE, RuntimeError("no such kernel")])
def test_what_fails_in_a_replay_is_named_with_it(m: Measurement, error: Exception) -> None:
    m.phase, m.step, m.replay = Phase.LONGEST_BATCH, None, Replay.EVALUATION
    failure = failure_of(error, m)
    assert failure.replay is Replay.EVALUATION and failure.detail.endswith(", in an evaluation")
