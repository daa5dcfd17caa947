"""``tuner doctor``, with the child's answer in its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tuner.commands.made import call
from tuner import check
from tuner.commands import doctor
from tuner.device import DeviceInfo
from tuner.errors import MachineError, WrongInput
from tuner.machine import CheckItem, ChildFacts, ChildReport

DEVICE = CheckItem(name="device", ok=True, value="a card")
FACTS = ChildFacts(device_name="a card", cuda_total_bytes=24 * 2**30, multiprocessors=132, capability="9.0")
HEALTHY = ChildReport(stage="done", items=(DEVICE,), facts=FACTS, compile_seconds=9.0)
BROKEN = ChildReport(
    stage="done", items=(DEVICE, CheckItem(name="compile", ok=False, value="it fell over", advice="help it up"))
)


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    return []


def answer(monkeypatch: pytest.MonkeyPatch, asked: list[str], report: ChildReport) -> None:
    def ask(device: str, *_: object) -> ChildReport:
        asked.append(device)
        return report

    monkeypatch.setattr(check, "ask_child", ask)
    monkeypatch.setattr("tuner.device.list_cards", lambda: [])


def test_a_healthy_machine(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    answer(monkeypatch, asked, HEALTHY)
    assert call(doctor, "--device", "cuda") == 0
    out = capsys.readouterr().out
    assert "compiler" in out and "headers" in out and "disk" in out
    assert "24.00 GiB as CUDA counts, 132 multiprocessors, capability 9.0" in " ".join(out.split())
    assert (tmp_path / "studies" / "check.json").exists(), "the next search need not ask"
    assert call(doctor, "--device", "cuda") == 0
    assert asked == ["cuda:0", "cuda:0"], "doctor always asks"


def test_a_machine_that_cannot_compile_is_one_message(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(monkeypatch, asked, BROKEN)
    with pytest.raises(MachineError, match=r"this machine cannot compile: it fell over \(help it up\)") as caught:
        call(doctor, "--device", "cpu")
    assert caught.value.exit_code == 4
    assert "it fell over" in capsys.readouterr().out


def test_as_json(asked: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answer(monkeypatch, asked, HEALTHY)
    assert call(doctor, "--json", "--device", "cpu") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["can_compile"] and data["facts"]["device"] == "cpu"


CARD = DeviceInfo(type="cuda", name="a card", uuid="GPU-1", total_bytes=24 * 2**30)


@pytest.mark.parametrize(("cards", "device", "visible"), [([], "cpu", ""), ([CARD], "cuda:0", "GPU-1")])
def test_the_first_card_unless_there_is_none(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, cards: list[DeviceInfo], device: str, visible: str
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("tuner.device.list_cards", lambda: cards)
    seen: list[str] = []

    def ask(name: str, _: object, environment: dict[str, str], *__: object) -> ChildReport:
        seen.extend([name, environment["CUDA_VISIBLE_DEVICES"]])
        return HEALTHY

    monkeypatch.setattr(check, "ask_child", ask)
    assert call(doctor) == 0
    assert seen == [device, visible], "as a search asks, so that it need not ask again"


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cpu:0"])
def test_a_device_that_is_none(asked: list[str], device: str) -> None:
    with pytest.raises(WrongInput, match="device: must be cpu, cuda or cuda:N"):
        call(doctor, "--device", device)
