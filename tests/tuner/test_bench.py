"""A bench: device, budget, and what is checked before anything is written."""

from __future__ import annotations

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
from tuner.checklist import disk_item
from tuner.errors import MachineError, NothingFits, WrongInput
from tuner.host import worker_threads
from tuner.machine import ChildFacts
from tuner.measuring import make_executor
from tuner.spec import StudySpec
from tuner.units import GIB

__all__ = ["bench", "card"]


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
