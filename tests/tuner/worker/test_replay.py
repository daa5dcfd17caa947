"""What is replayed before a strategy counts as feasible, and how what happens there is named."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.tuner.worker.workloads import measurement, shaped, users
from tuner.kinds import FailureClass, Kind, Phase, Replay
from tuner.protocol import Event, Failure
from tuner.worker.data import Batches
from tuner.worker.ended import failure_of
from tuner.worker.health import CompileHealth
from tuner.worker.measure import Trial
from tuner.worker.measurement import Measurement
from tuner.worker.memory import Memory
from tuner.worker.replay import replays_of
from tuner.worker.steps import Steps
from tuner.workload import Lengths, Workload

VARIED = Lengths(kind="list", max=12, values=(4, 8, 12))
MOE = {"num_experts": 4, "num_experts_per_tok": 2}


def ran(workload: Workload, events: list[Event] | None = None, **strategy: Any) -> Measurement:
    made = measurement(workload, events, **strategy)
    Trial(made).run()
    return made


def failed(workload: Workload, **strategy: Any) -> tuple[Measurement, Failure]:
    made = measurement(workload, **strategy)
    try:
        Trial(made).run()
    except Exception as error:
        return made, failure_of(error, made)
    raise AssertionError("it did not fail")


@pytest.mark.parametrize(
    ("changes", "due"),
    [
        ({}, ()),
        ({"lengths": VARIED}, (Replay.LONGEST,)),
        ({"drop_last": False}, (Replay.PARTIAL,)),
        ({"drop_last": False, "batch_size": 1}, ()),
        ({"eval": True}, (Replay.EVALUATION,)),
        ({"lengths": VARIED, "drop_last": False, "eval": True}, (Replay.LONGEST, Replay.PARTIAL, Replay.EVALUATION)),
        ({"config": MOE}, (Replay.SKEWED,)),
        ({"config": MOE, "batch_fn": "m:f"}, ()),
    ],
)
def test_what_is_due(changes: dict[str, Any], due: tuple[Replay, ...]) -> None:
    assert replays_of(shaped(**changes), torch.nn.Linear(1, 1)) == due


def test_a_hubs_model_tells_of_its_experts_itself() -> None:
    model = torch.nn.Linear(1, 1)
    model.config = type("Config", (), {})()  # type: ignore[assignment]
    model.config._experts_implementation = "eager"  # type: ignore[union-attr]
    assert replays_of(shaped(), model) == ()
    model.config.num_local_experts = 8  # type: ignore[union-attr]
    assert replays_of(shaped(), model) == (Replay.SKEWED,)


def test_all_of_them_in_order_each_told_and_training_goes_on_after(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bool, bool, int, int]] = []
    forward = Steps._forward

    def noted(self: Steps, micro_batch: Any, observe: Any) -> Any:
        ids = micro_batch.batch["input_ids"]
        kinds = len(ids.unique())
        seen.append((self.applied.model.training, torch.is_grad_enabled(), ids.shape[0], kinds))
        return forward(self, micro_batch, observe)

    monkeypatch.setattr(Steps, "_forward", noted)
    at: list[int] = []
    enter = Trial.longest_batch
    monkeypatch.setattr(Trial, "longest_batch", lambda self, due: (at.append(len(seen)), enter(self, due))[1])
    monkeypatch.setattr("tuner.worker.measure.replays_of", lambda *_: tuple(Replay))
    events: list[Event] = []
    made = ran(shaped(lengths=VARIED, drop_last=False, eval=True), events, micro_batch=4)
    after = seen[at[0] :]
    trains, rows = [(t, g) for t, g, _, _ in after], [r for _, _, r, _ in after]
    assert rows == [4, 4, 4, 4, 4, 3, 4, 4, 8, 4, 4]  # longest, skewed, partial and whole, evaluation and whole
    assert trains == [(True, True)] * 8 + [(False, False)] + [(True, True)] * 2
    assert [kinds for *_, kinds in after[2:4]] == [1, 1]
    assert made.replays == list(Replay) and made.replay is None
    assert [e.note for e in events if e.event == "note"] == [replay.words for replay in Replay]
    assert made.phases[-1].phase is Phase.LONGEST_BATCH and made.phases[-1].steps == 5


def test_graphs_are_called_until_they_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(Steps, "evaluate", lambda _, batch: calls.append(batch))
    made = measurement(shaped(eval=True))
    trial = Trial(made)
    trial.load()
    trial.applied.records_graphs = True
    trial.longest_batch((Replay.EVALUATION,))
    assert len(calls) == 3 and made.step == 3


@pytest.mark.parametrize(
    ("replay", "changes", "words"),
    [
        (Replay.LONGEST, {"lengths": VARIED}, "in the longest batch"),
        (Replay.PARTIAL, {"drop_last": False}, "in a partial last batch"),
        (Replay.EVALUATION, {"eval": True}, "in an evaluation"),
    ],
)
def test_an_out_of_memory_there_is_named_for_what_it_is(
    monkeypatch: pytest.MonkeyPatch, replay: Replay, changes: dict[str, Any], words: str
) -> None:
    def refuse(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. ")

    of_batches = {Replay.LONGEST: "longest", Replay.PARTIAL: "partial", Replay.EVALUATION: "evaluation"}
    longest = Trial.longest_batch

    def late(self: Trial, due: tuple[Replay, ...]) -> None:
        monkeypatch.setattr(Batches, of_batches[replay], refuse)
        longest(self, due)

    monkeypatch.setattr(Trial, "longest_batch", late)
    made, failure = failed(shaped(**changes))
    assert (failure.failure_class, failure.phase, failure.replay) == (FailureClass.OOM, Phase.LONGEST_BATCH, replay)
    assert failure.detail == f"the allocator was asked for 2.00 GiB more, {words}"
    assert made.replays == []


def test_an_out_of_memory_elsewhere_has_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = Steps.timed
    calls: list[int] = []

    def refuse(self: Steps, *args: Any) -> tuple[float, float]:
        calls.append(1)
        if len(calls) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. ")
        return timed(self, *args)

    monkeypatch.setattr(Steps, "timed", refuse)
    _, failure = failed(shaped())
    assert (failure.phase, failure.step) == (Phase.SETTLE, 2)
    assert failure.detail == "the allocator was asked for 2.00 GiB more, in step 2 of settle"


def test_the_replay_that_set_the_peak_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = iter([100, 100, 140, 120])
    monkeypatch.setattr(Memory, "peak", lambda _: next(peaks))
    made = ran(shaped(lengths=VARIED, drop_last=False, eval=True))
    assert made.peak_replay is Replay.PARTIAL


def test_what_compiles_there_is_counted_and_allowed(quick_compile: None) -> None:
    made = ran(users(drop_last=False, eval=True), mode="default", scope="layer", micro_batch=8)
    assert made.replays == [Replay.PARTIAL, Replay.EVALUATION] and made.throughput is not None
    assert any("longest_batch" in note and "in a partial last batch" in note for note in made.notes)


def test_past_the_recompile_limit_there_it_is_not_what_it_says(
    quick_compile: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = CompileHealth.report

    def late(self: CompileHealth, seconds: float) -> Any:
        found = report(self, seconds)
        return found.model_copy(update={"recompile_limit_hit": made.phase is Phase.LONGEST_BATCH})

    monkeypatch.setattr(CompileHealth, "report", late)
    made = measurement(users(eval=True), mode="default", scope="layer")
    with pytest.raises(Exception) as caught:
        Trial(made).run()
    failure = failure_of(caught.value, made)
    assert (failure.failure_class, failure.kind) == (FailureClass.COMPILE_NOT_APPLIED, Kind.RECOMPILE_LIMIT)
    assert failure.detail == "the recompile limit was hit, and calls past it ran eager, in an evaluation"
