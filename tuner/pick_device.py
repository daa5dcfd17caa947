"""The device that a person means: ``--device`` and CUDA_VISIBLE_DEVICES against the cards that there are."""

from __future__ import annotations

from tuner import device as devices
from tuner.device import DeviceInfo
from tuner.errors import MachineError, WrongInput


def pick_device(given: str | None, visible: str | None) -> DeviceInfo:
    """Return the device that ``--device`` names: the first card unless said, else the CPU.

    Args:
        visible: CUDA_VISIBLE_DEVICES, which renumbers the cards; None: not set.

    Raises:
        WrongInput: it has another form, or there are not so many cards.
        MachineError: a card is asked for and there is none.
    """
    if given == "cpu":
        return devices.cpu_device()
    kind, _, number = ("cuda" if given is None else given).partition(":")
    if kind != "cuda" or (number and not number.isdigit()):
        raise WrongInput("device", "must be cpu, cuda or cuda:N", given)
    cards = _visible(devices.list_cards(), visible)
    if not cards and given is None:
        return devices.cpu_device()
    if not cards:
        raise MachineError(
            "no CUDA card can be seen here: NVIDIA's driver is missing, or CUDA_VISIBLE_DEVICES hides it"
        )
    if int(number or 0) >= len(cards):
        raise WrongInput("device", f"must be one of cuda:0 to cuda:{len(cards) - 1}", given)
    return cards[int(number or 0)]


def _visible(cards: list[DeviceInfo], visible: str | None) -> list[DeviceInfo]:
    if visible is None:
        return cards
    found = []
    for word in visible.split(","):
        word = word.strip()
        if word.isdigit() and int(word) < len(cards):
            found.append(cards[int(word)])
        else:
            found += [card for card in cards if word and (card.uuid or "").startswith(word)]
    return found
