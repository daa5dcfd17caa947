"""What a report says of cards."""

from __future__ import annotations

from tests.tuner.made import ENVIRONMENT, out_of_memory, record_of, result_of, study_of
from tuner.card_words import budget_words, card_limit, card_notes, into, too_small
from tuner.cards import find_card
from tuner.kinds import Phase
from tuner.outcome import Outcome
from tuner.report import summary
from tuner.units import GIB, gib_to_bytes

TIGHT = record_of(peak_device_bytes=gib_to_bytes(22.6))


def test_a_budget_that_is_a_card() -> None:
    assert into(study_of()) == "in 24.00 GiB" and budget_words(study_of()) == "24.00 GiB"
    assert into(study_of(card="rtx4090")) == "an rtx4090 (24.00 GiB)"
    assert into(study_of(card="t4", budget_bytes=16 * GIB)) == "a t4 (16.00 GiB)"


def test_the_cards_of_that_size_that_it_does_not_fit_are_named() -> None:
    assert [card.name for card in too_small(24 * GIB, gib_to_bytes(22.6))] == ["a10", "a10g", "l4"]
    assert too_small(24 * GIB, 20 * GIB) == [] == too_small(24 * GIB, None)
    assert len(too_small(24 * GIB, gib_to_bytes(22.9))) == 5
    notes = card_notes(study_of(), TIGHT)
    assert len(notes) == 1
    assert notes[0].startswith(
        "The winner would not fit an a10 (limit 21.39 GiB) or an a10g (limit 21.32 GiB) or an l4"
    )


def test_a_card_is_not_named_where_nothing_is_emulated() -> None:
    own = ENVIRONMENT.model_copy(
        update={"device_name": "NVIDIA GeForce RTX 4090", "device_total_bytes": gib_to_bytes(23.6)}
    )
    assert card_notes(study_of(environment=own), TIGHT) == ()
    assert card_notes(study_of(environment=own, card="rtx4090"), TIGHT) == ()


def test_it_is_said_where_throughput_was_measured() -> None:
    found = summary(study_of(card="rtx4090"), [TIGHT])
    assert found.card == "rtx4090"
    assert found.notes[0].startswith("Throughput was measured on a card, not on an rtx4090:")
    assert found.answer.startswith("Fastest of what fits an rtx4090 (24.00 GiB): ")


def test_what_would_have_to_give_is_a_larger_card() -> None:
    dead = record_of(Outcome.OOM, phase=Phase.FIRST_STEP, result=result_of(failure=out_of_memory()), needed_bytes=GIB)
    lines = summary(study_of(card="l4"), [dead]).would_have_to_give
    assert not any("--budget-gb" in line for line in lines)


def test_the_limit_of_a_card_is_that_of_its_total() -> None:
    gives = find_card("rtx4090").gives_bytes
    assert card_limit(find_card("rtx4090")) == gives - int(0.03 * gives)
