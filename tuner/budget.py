"""The budget that a study is of, the card that it stands for, and what the device gives a process now."""

from __future__ import annotations

from tuner import device as devices
from tuner.cards import Card, find_card
from tuner.device import DeviceInfo
from tuner.errors import WrongInput
from tuner.limits import OVER_CARD, Limits, limits
from tuner.spec import StudySpec
from tuner.units import GIB, format_gib
from tuner.workload import Precision


def asked_bytes(spec: StudySpec, device: DeviceInfo) -> int:
    """The budget that the study is of. On a CPU more than there is stands for all there is."""
    if spec.card is not None:
        return find_card(spec.card).nominal_bytes
    if spec.budget_bytes is None:
        return whole_bytes(device)
    return spec.budget_bytes if device.type == "cuda" else min(spec.budget_bytes, whole_bytes(device))


def whole_bytes(device: DeviceInfo) -> int:
    """The budget where none is asked for. On a CPU in whole GiB, so that a study is found again."""
    return device.total_bytes if device.type == "cuda" else max(GIB, device.total_bytes // GIB * GIB)


def given_bytes(device: DeviceInfo) -> int:
    """T: what the device gives a process now."""
    if device.uuid is None:
        return devices.available_bytes()
    base = devices.read_base_line(device.uuid)
    # The driver's own share lies outside what CUDA reports as total; what people see does not.
    others = sum(p.used_bytes or 0 for p in base.processes)
    return device.total_bytes - others


def emulated_card(spec: StudySpec, device: DeviceInfo) -> Card | None:
    """The card that `device` stands in for; None: none was named, or it is that card itself.

    Raises:
        WrongInput: the device is a CPU, or too small.
    """
    if spec.card is None:
        return None
    card = find_card(spec.card)
    if device.type == "cpu":
        raise WrongInput("card", "stands for a CUDA card: on a CPU give --budget-gb instead", card.name)
    if card.is_real(device.name, device.total_bytes):
        return None
    if card.nominal_bytes > OVER_CARD * device.total_bytes:
        has = f"{device.name} with {format_gib(device.total_bytes)}"
        raise WrongInput("card", f"must not be larger than the card here, {has}", card.name)
    return card


def limits_of(spec: StudySpec, device: DeviceInfo, given: int) -> Limits:
    """The limits of what is asked for, where `given` bytes can be had.

    Raises:
        WrongInput: budget or card are more than the device has.
        NothingFits: the margin alone takes the budget.
    """
    card = emulated_card(spec, device)
    return limits(
        asked_bytes(spec, device),
        given,
        device.type,
        total_bytes=device.total_bytes,
        gives_bytes=None if card is None else card.gives_bytes,
    )


def multiprocessors(spec: StudySpec, device: DeviceInfo) -> int | None:
    """Of the card that strategies are meant for; None: not known yet."""
    card = emulated_card(spec, device)
    return device.multiprocessors if card is None else card.multiprocessors


def precision_notes(spec: StudySpec, precision: Precision) -> list[str]:
    """What a person is told of a precision that the card they named does not have."""
    if spec.card is None or find_card(spec.card).has_bf16 or not precision.startswith("bf16"):
        return []
    return [f"the card {spec.card} has no bf16: what is measured in {precision} does not hold there (fp16-mixed does)"]


def budget_notes(spec: StudySpec, device: DeviceInfo, found: Limits) -> list[str]:
    """What a person is told of the budget before anything is measured."""
    if spec.budget_bytes is not None and found.budget_bytes < spec.budget_bytes:
        return [f"the budget is clamped to the {format_gib(found.budget_bytes)} that the device gives"]
    if spec.card is None:
        return []
    card = emulated_card(spec, device)
    if card is None:
        return [f"this is the card {spec.card} itself: nothing is emulated"]
    notes = [
        f"{card.name} is emulated: of its {format_gib(card.nominal_bytes)} it gives a process "
        f"{format_gib(card.gives_bytes)}; throughput is measured on {device.name}"
    ]
    if card.gives_bytes > device.total_bytes:
        notes.append(f"the limit is that of {device.name}, which has less: {format_gib(device.total_bytes)}")
    return notes
