"""What the memory of a step goes to: bytes by owner, peaks by part."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.tuner.worker.test_memory import FakeCard, card
from tests.tuner.worker.workloads import measurement, shaped
from tuner.worker.inventory import StepWatch, gradient_bytes, parameter_bytes, state_bytes, storage_bytes
from tuner.worker.measure import Trial
from tuner.worker.memory import Memory

__all__ = ["card"]


def test_each_storage_counts_once() -> None:
    base = torch.zeros(100)
    assert storage_bytes([base, base[:10], base.view(10, 10), torch.zeros(5, dtype=torch.int8)]) == 405
    tied = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    tied[1].weight = tied[0].weight
    tied.register_buffer("mask", torch.zeros(3))
    assert parameter_bytes(tied) == 8 * 8 * 4 + 12


def test_scales_of_quantised_weights_are_parameters() -> None:
    class State:
        def __init__(self, inner: State | None = None) -> None:
            self.absmax, self.shape, self.state2 = torch.zeros(16), (8, 8), inner

    model = nn.Linear(8, 8, bias=False)
    model.weight.quant_state = State(State())  # type: ignore[attr-defined]
    assert parameter_bytes(model) == 8 * 8 * 4 + 2 * 64


def test_gradients_and_states() -> None:
    model = nn.Linear(8, 8, bias=False)
    optimizer = torch.optim.AdamW(model.parameters())
    assert (gradient_bytes(model), state_bytes(optimizer)) == (0, 0)
    model(torch.ones(1, 8)).sum().backward()
    assert gradient_bytes(model) == 256
    optimizer.step()
    assert state_bytes(optimizer) == 2 * 256 + 4  # two moments and the step


def applied(keep_gradients: bool = False) -> SimpleNamespace:
    model = nn.Linear(8, 8, bias=False)
    model(torch.ones(1, 8)).sum().backward()
    return SimpleNamespace(model=model, optimizer=SimpleNamespace(state={}), keep_gradients=keep_gradients)


def watched(memory: Memory, owner: SimpleNamespace, use: FakeCard, *peaks: int) -> StepWatch:
    use.use(9999)  # of the steps before
    watch = StepWatch(memory, owner)  # type: ignore[arg-type]
    for forward, backward in zip(peaks[:-1:2], peaks[1:-1:2], strict=True):
        use.use(forward)
        watch.forwarded()
        use.use(backward)
        watch.backwarded()
    watch.before_update()
    use.use(peaks[-1])
    return watch


def test_a_step_of_a_card_by_part_and_owner(card: FakeCard) -> None:
    memory = Memory(torch.device("cuda", 0))
    ledger = watched(memory, applied(), card, 2000, 3000, 2500, 2900, 1200).ledger()
    assert (ledger.forward_peak_bytes, ledger.backward_peak_bytes, ledger.update_peak_bytes) == (2500, 3000, 1200)
    assert (ledger.parameters_bytes, ledger.gradients_bytes, ledger.optimizer_state_bytes) == (256, 256, 0)
    assert (ledger.activations_bytes, ledger.activations_from) == (3000 - 512, "allocator")
    assert memory.take().allocated_bytes == 9999, "the phase keeps its own maximum"


@pytest.mark.parametrize(("keep_gradients", "activations"), [(True, 1000), (False, 1000 - 256)])
def test_beside_graphs_the_pools_stand_for_the_activations(
    card: FakeCard, keep_gradients: bool, activations: int
) -> None:
    memory = Memory(torch.device("cuda", 0))
    memory.records_graphs = True
    card.segments = [{"total_size": 1000, "segment_pool_id": (0, 1)}, {"total_size": 50, "segment_pool_id": (0, 0)}]
    ledger = watched(memory, applied(keep_gradients), card, 2000, 3000, 1200).ledger()
    assert (ledger.activations_bytes, ledger.activations_from) == (activations, "graph_pools")
    assert ledger.forward_peak_bytes is None and ledger.parameters_bytes == 256


def test_the_ledger_of_a_trial_on_a_cpu() -> None:
    made = measurement(shaped(), micro_batch=4)
    Trial(made).run()
    ledger = made.memory
    assert ledger is not None and made.applied is not None
    numbers = sum(p.numel() for p in made.applied.model.parameters())
    assert ledger.parameters_bytes is not None and ledger.parameters_bytes >= 4 * numbers
    assert ledger.gradients_bytes == 4 * numbers
    assert ledger.optimizer_state_bytes is not None and ledger.optimizer_state_bytes >= 8 * numbers
    assert (ledger.activations_bytes, ledger.activations_from) == (None, None)
    peaks = (ledger.forward_peak_bytes, ledger.backward_peak_bytes, ledger.update_peak_bytes)
    assert all(peak and peak > 100 * 2**20 for peak in peaks)
    assert made.detector_seconds["memory_ledger"] > 0
