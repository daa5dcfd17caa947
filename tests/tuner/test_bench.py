"""A bench: device, budget, and what is checked before anything is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.tuner_with_trainer import HEALTHY
from tests.tuner.fake_nvml import UUID, Entry, FakeNvml, card
from tests.tuner.searching import Bench, Heard, bench
from tests.tuner.searching import opened_bench as opened
from tuner import bench as benches
from tuner import check
from tuner import device as devices
from tuner.bench import make_study
from tuner.cards import find_card
from tuner.checklist import disk_item
from tuner.errors import MachineError, NothingFits, WrongInput
from tuner.host import worker_threads
from tuner.machine import ChildFacts
from tuner.measuring import make_executor
from tuner.spec import StudySpec
from tuner.units import GIB

__all__ = ["bench", "card"]
AUTOTUNED = {"mode": "max-autotune-no-cudagraphs"}


# A bench on the CPU.


def test_without_a_budget_it_is_what_the_machine_has_in_whole_gib(bench: Bench) -> None:
    with opened() as made:
        assert made.asked_bytes % GIB == 0 and made.asked_bytes <= max(GIB, made.device.total_bytes)
        assert made.limits.limit_bytes < made.limits.t_bytes
        assert not any("clamped" in note for note in made.notes), "nobody asked for one"


def test_a_budget_above_what_a_cpu_gives_is_clamped_with_one_line(bench: Bench) -> None:
    with opened(budget_gb=100_000) as made:
        assert made.limits.budget_bytes <= made.limits.t_bytes
        assert sum("the budget is clamped to the" in note for note in made.notes) == 1
        # All there is, in whole GiB: the study's name does not follow what is free today.
        assert made.asked_bytes == made.device.total_bytes // GIB * GIB


def test_what_was_assumed_is_noted(bench: Bench) -> None:
    with opened() as made:
        assert made.notes[0].startswith("assumed: model tiny, adapter full")
    with opened(model="tiny", adapter="full", precision="32-true", seq_len=64) as made:
        assert made.notes[0] == "assumed: random weights (memory and speed do not depend on them)"


def test_variables_that_are_not_handed_on_are_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Mapping[str, str]] = []

    def ask(_device: str, _cache: Path, environment: Mapping[str, str], *_: object) -> Any:
        seen.append(environment)
        return HEALTHY

    monkeypatch.setattr(check, "ask_child", ask)
    with opened({"TORCH_LOGS": "+all", "PYTORCH_ALLOC_CONF": "x:1", "HOME": "/home"}) as made:
        notes = [note for note in made.notes if "not handed on" in note]
    assert len(notes) == 1 and notes[0].endswith(": PYTORCH_ALLOC_CONF, TORCH_LOGS")
    assert "TORCH_LOGS" not in seen[0] and seen[0]["HOME"] == "/home"
    with opened({"HOME": "/home"}) as made:
        assert not any("not handed on" in note for note in made.notes)


def test_the_check_is_made_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def ask(*_: object) -> Any:
        asked.append(1)
        return HEALTHY

    monkeypatch.setattr(check, "ask_child", ask)
    for expected in (["checking the machine with a tiny compile; it takes half a minute, the first time only"], []):
        heard = Heard()
        with opened(heard=heard):
            assert heard.messages == expected
    assert asked == [1]


def test_a_machine_that_cannot_run_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "ask_child", lambda *_: HEALTHY.model_copy(update={"items": (), "stage": "torch"}))
    with pytest.raises(MachineError, match=r"this machine cannot train: .*tuner doctor says more"):
        bench.run(trials=1)


def test_a_full_disk_is_said_before_it_is_met(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    full = disk_item(Path()).model_copy(update={"ok": False, "value": "0.10 GiB free", "advice": "tidy up"})
    monkeypatch.setattr(benches, "disk_item", lambda _: full)
    with pytest.raises(MachineError, match=r"^disk: 0\.10 GiB free; tidy up"):
        bench.run(trials=1)


# Budgets of a card.


@pytest.fixture
def on_card(card: FakeNvml, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """CUDA reports 1 GiB less than NVML."""
    total = devices.list_cards()[0].total_bytes
    monkeypatch.setattr(check, "nvidia_driver", lambda: "580.95.05")
    facts = ChildFacts(cuda_total_bytes=total - GIB, multiprocessors=132)
    monkeypatch.setattr(check, "ask_child", lambda *_: HEALTHY.model_copy(update={"facts": facts}))
    return card


def test_a_card_is_known_by_what_cuda_reports(on_card: FakeNvml) -> None:
    nvml = devices.list_cards()[0].total_bytes
    with opened(device="cuda:0", budget_gb=24) as made:
        assert made.device.uuid == UUID and made.device.total_bytes == nvml - GIB
        assert made.target.multiprocessors == 132 and made.target.emulated
        assert made.workload.model == "llama-7b" and made.limits.limit_bytes == pytest.approx(22.8 * GIB, rel=0.01)


def test_the_threads_are_told_on_a_cpu_alone(on_card: FakeNvml) -> None:
    with opened(device="cuda:0", budget_gb=24) as on_a_card, opened(device="cpu", budget_gb=1) as on_a_cpu:
        assert on_a_card.environment.threads is None and on_a_cpu.environment.threads == worker_threads()


def test_a_budget_above_the_card(on_card: FakeNvml) -> None:
    has = devices.list_cards()[0].total_bytes / GIB
    with (
        pytest.raises(WrongInput, match=r"^budget_gb: must be at most 12\.5 % above the"),
        opened(device="cuda:0", budget_gb=has * 1.2),
    ):
        pass
    assert not any(Path().iterdir()), "told before anything was written"
    with opened(device="cuda:0", budget_gb=has * 1.05) as made:
        assert made.limits.clamped and sum("clamped" in note for note in made.notes) == 1


def test_a_budget_that_the_margin_takes(on_card: FakeNvml) -> None:
    with pytest.raises(NothingFits), opened(device="cuda:0", budget_gb=0.4):
        pass
    assert not any(Path().iterdir())


def test_a_desktop_lowers_t(on_card: FakeNvml) -> None:
    with opened(device="cuda:0") as made:
        before = made.limits.t_bytes
    on_card.graphics = [Entry(99, 2 * GIB)]
    with opened(device="cuda:0") as made:
        assert made.limits.t_bytes == before - 2 * GIB == made.given_bytes
        executor = make_executor(made, StudySpec(device="cuda:0"), {})
        assert executor._t_bytes == made.given_bytes, "what it grows by during the search lowers it further"


def test_an_emulated_card_is_not_lowered_by_a_small_desktop(on_card: FakeNvml) -> None:
    with opened(device="cuda:0", budget_gb=24) as made:
        assert made.given_bytes > 70 * GIB > made.limits.t_bytes
        assert make_executor(made, StudySpec(device="cuda:0"), {})._t_bytes == made.given_bytes


# A card that is named.


def test_a_card_in_place_of_a_budget(on_card: FakeNvml) -> None:
    with opened(device="cuda:0", card="RTX 4090") as made:
        gives = find_card("rtx4090").gives_bytes
        assert (made.asked_bytes, made.card) == (24 * GIB, "rtx4090") and made.limits.emulated
        assert made.limits.limit_bytes == gives - int(0.03 * gives)
        assert made.target.emulated and made.target.multiprocessors == 128
        assert any("rtx4090 is emulated" in note and "measured on" in note for note in made.notes)
        assert make_study(made, "s").card == "rtx4090"


def test_a_small_card_is_not_autotuned_for_on_a_large_one(on_card: FakeNvml) -> None:
    with pytest.raises(WrongInput, match="leave no strategy"), opened(device="cuda:0", card="l4", fix=AUTOTUNED):
        pass
    with opened(device="cuda:0", card="rtx4090", fix=AUTOTUNED):
        pass


def test_a_card_that_is_larger_than_the_real_one(on_card: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    small = dataclasses.replace(devices.list_cards()[0], total_bytes=20 * GIB)
    monkeypatch.setattr(devices, "list_cards", lambda: [small])
    said = r"^card: must not be larger than the card here, .* with 20\.00 GiB, not 'l4'"
    with pytest.raises(WrongInput, match=said), opened(device="cuda:0", card="l4"):
        pass
    assert not any(Path().iterdir()), "told before anything was written"


def test_the_real_card_is_not_emulated(on_card: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    total = int(22.2 * GIB)
    real = dataclasses.replace(devices.list_cards()[0], name="NVIDIA L4", total_bytes=total + GIB)
    monkeypatch.setattr(devices, "list_cards", lambda: [real])
    facts = ChildFacts(cuda_total_bytes=total, multiprocessors=58)
    monkeypatch.setattr(check, "ask_child", lambda *_: HEALTHY.model_copy(update={"facts": facts}))
    with opened(device="cuda:0", card="l4") as made:
        assert not made.limits.emulated and not made.target.emulated
        assert made.limits.limit_bytes == total - int(0.03 * total), "its own total counts"
        assert any("nothing is emulated" in note for note in made.notes)


def test_a_card_of_the_same_size_that_gives_less_says_so(on_card: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    total = int(22.0 * GIB)
    real = dataclasses.replace(devices.list_cards()[0], name="NVIDIA L4", total_bytes=total)
    monkeypatch.setattr(devices, "list_cards", lambda: [real])
    facts = ChildFacts(cuda_total_bytes=total, multiprocessors=58)
    monkeypatch.setattr(check, "ask_child", lambda *_: HEALTHY.model_copy(update={"facts": facts}))
    with opened(device="cuda:0", card="rtx3090") as made:
        assert made.limits.t_bytes == total
        assert any("which has less: 22.00 GiB" in note for note in made.notes)


def test_a_card_on_a_cpu(bench: Bench) -> None:
    said = r"^card: stands for a CUDA card: on a CPU give --budget-gb instead, not 'l4'"
    with pytest.raises(WrongInput, match=said), opened(card="l4"):
        pass


def test_a_card_without_bf16_is_not_searched_in_it(on_card: FakeNvml) -> None:
    with opened(device="cuda:0", card="t4") as made:
        assert made.workload.precision == "fp16-mixed" and any("precision fp16-mixed" in note for note in made.notes)
        assert not any("has no bf16" in note for note in made.notes)
    with opened(device="cuda:0", card="t4", precision="bf16-mixed") as made:
        assert any("the card t4 has no bf16" in note for note in made.notes)
    with opened(device="cuda:0", card="l4") as made:
        assert made.workload.precision == "bf16-mixed" and not any("has no bf16" in note for note in made.notes)
