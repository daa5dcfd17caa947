"""The device that a person means."""

from __future__ import annotations

import pytest

from tuner import device as devices
from tuner.device import DeviceInfo
from tuner.errors import MachineError, WrongInput
from tuner.pick_device import pick_device
from tuner.units import GIB

CARDS = [DeviceInfo(uuid=f"GPU-{letter}{letter}", name="a card", type="cuda", total_bytes=80 * GIB) for letter in "abc"]


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "list_cards", lambda: list(CARDS))


@pytest.mark.parametrize(
    ("given", "visible", "picked"),
    [
        (None, None, 0),
        ("cuda", None, 0),
        ("cuda:2", None, 2),
        ("cuda:0", "2,1", 2),
        ("cuda:1", "GPU-cc,GPU-bb", 1),
        (None, "1", 1),
    ],
)
def test_the_device(cards: None, given: str | None, visible: str | None, picked: int) -> None:
    assert pick_device(given, visible) == CARDS[picked]


def test_the_processor(cards: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pick_device("cpu", None).type == "cpu"
    assert pick_device(None, "").type == "cpu", "no card is to be seen"
    monkeypatch.setattr(devices, "list_cards", lambda: [])
    assert pick_device(None, None).type == "cpu"


def test_devices_that_are_not_there(cards: None) -> None:
    for given in ("gpu", "cuda:x", "cuda:-1", "cpu:0", ""):
        with pytest.raises(WrongInput, match=r"^device: must be cpu, cuda or cuda:N"):
            pick_device(given, None)
    with pytest.raises(WrongInput, match=r"^device: must be one of cuda:0 to cuda:2, not 'cuda:3'"):
        pick_device("cuda:3", None)
    with pytest.raises(MachineError, match="no CUDA card can be seen"):
        pick_device("cuda:0", "")
