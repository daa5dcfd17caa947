"""CUDA graphs that are recorded anew for each length, which batches that repeat do not show."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.tuner.worker.workloads import measurement, shaped
from tuner.kinds import FailureClass
from tuner.units import MIB
from tuner.worker.failure import NotWhatItSays
from tuner.worker.memory import Memory
from tuner.worker.settling import Settling
from tuner.workload import Lengths


class Recorder:
    """Stands for inductor: a new length warms up, then is recorded, then replayed; a pool takes 4 MiB a graph."""

    def __init__(self, met: set[int]) -> None:
        self.calls = dict.fromkeys(met, 2)
        self.graphs = len(met)

    def recorded_graphs(self) -> int:
        return self.graphs

    def step(self, length: int) -> None:
        self.calls[length] = self.calls.get(length, 0) + 1
        self.graphs += self.calls[length] == 2


def settling(recorder: Recorder, fresh: list[int], mode: str, lengths: Lengths) -> Settling:
    strategy = {"mode": mode}
    m = measurement(shaped(lengths=lengths))
    m.request = m.request.model_copy(update={"strategy": m.request.strategy | strategy})
    m.health = recorder  # type: ignore[assignment]

    class Pools(Memory):
        def graph_pool_bytes(self) -> int:
            return recorder.graphs * 4 * MIB

    steps: Any = SimpleNamespace(
        memory=Pools(torch.device("cpu")), batches=SimpleNamespace(fresh=lambda index: fresh[index])
    )
    return Settling(m, torch.nn.Linear(1, 1), steps, None, lambda batch: recorder.step(batch), [])  # type: ignore[arg-type, func-returns-value]


VARIED = Lengths(kind="list", max=9, values=tuple(range(2, 10)))


def test_graphs_that_training_would_go_on_recording() -> None:
    with pytest.raises(NotWhatItSays) as caught:
        settling(Recorder({2, 3}), [4, 3, 5], "reduce-overhead", VARIED)._meet_fresh_lengths()
    assert caught.value.failure_class is FailureClass.UNSTABLE
    assert caught.value.detail == (
        "3 batches of lengths not met before had 2 CUDA graphs recorded, and their pools rose by 8.0 MiB: "
        "training would go on recording (2 before)"
    )


def test_few_lengths_that_were_all_met_are_healthy() -> None:
    settling(Recorder({2, 3}), [3, 2, 3], "reduce-overhead", VARIED)._meet_fresh_lengths()


def test_one_rare_length_of_a_list_that_was_not_met_is_healthy() -> None:
    found = settling(Recorder({2, 3}), [3, 9, 2], "reduce-overhead", VARIED)
    found._meet_fresh_lengths()
    assert found.m.notes == ["settle: 1 of 3 batches of lengths not met before had 1 CUDA graphs recorded"]


@pytest.mark.parametrize(("mode", "lengths"), [("default", VARIED), ("reduce-overhead", Lengths.fixed(9))])
def test_nothing_is_run_where_there_is_no_question(mode: str, lengths: Lengths) -> None:
    recorder = Recorder(set())
    settling(recorder, [4, 5, 6], mode, lengths)._meet_fresh_lengths()
    assert not recorder.calls
