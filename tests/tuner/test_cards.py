"""The cards that a strategy can be searched for."""

from __future__ import annotations

import argparse

import pytest

from tuner.cards import CARDS, find_card
from tuner.commands.workload_options import add_device_options
from tuner.errors import WrongInput
from tuner.units import GIB


def test_every_card_gives_less_than_it_is_sold_as() -> None:
    assert len({card.name for card in CARDS}) == len(CARDS)
    for card in CARDS:
        # No driver takes more than a tenth, ECC included; a slip in a figure would show here.
        assert 0.9 * card.nominal_bytes < card.gives_bytes < 0.99 * card.nominal_bytes, card.name


def test_the_help_names_them_all() -> None:
    # Written out there: the help imports nothing that it can do without.
    parser = argparse.ArgumentParser()
    add_device_options(parser)
    assert ", ".join(card.name for card in CARDS) in " ".join(parser.format_help().split()).replace("- ", "-")


def test_24_gib_cards_differ() -> None:
    gives = {card.name: round(card.gives_bytes / GIB, 2) for card in CARDS if card.nominal_bytes == 24 * GIB}
    assert 23.5 <= min(gives["rtx4090"], gives["rtx3090"]) <= 23.65
    assert 21.9 <= min(gives["a10"], gives["a10g"], gives["l4"]) <= 22.2, "ECC takes a sixteenth"


@pytest.mark.parametrize("given", ["rtx4090", "RTX4090", "RTX 4090", "rtx-4090", "rtx_4090"])
def test_a_card_is_found_however_it_is_spelt(given: str) -> None:
    assert find_card(given).name == "rtx4090"


def test_a_card_with_its_size_in_its_name() -> None:
    assert find_card("A100 40").name == "a100-40"


def test_an_unknown_card_suggests_the_nearest() -> None:
    with pytest.raises(WrongInput, match=r"^card: must be one of .*, not 'rtx4091' \(did you mean 'rtx4090'\?"):
        find_card("rtx4091")
    with pytest.raises(WrongInput, match="give its size with --budget-gb"):
        find_card("voodoo")


def test_the_real_card_is_known_by_its_name_and_size() -> None:
    card = find_card("rtx4090")
    assert card.is_real("NVIDIA GeForce RTX 4090", int(23.64 * GIB))
    assert not card.is_real("NVIDIA GeForce RTX 4090", int(47.5 * GIB)), "rebuilt with 48 GiB"
    assert not card.is_real("NVIDIA GeForce RTX 4090 D", int(23.64 * GIB))
    assert not find_card("a10").is_real("NVIDIA A10G", int(22 * GIB))
