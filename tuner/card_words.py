"""What a report says of cards: which one was emulated, and which of the same size the winner does not fit."""

from __future__ import annotations

from tuner.cards import CARDS, Card
from tuner.limits import limits
from tuner.record import StudyRecord, TrialRecord
from tuner.seen import is_emulated
from tuner.units import format_gib


def budget_words(study: StudyRecord) -> str:
    """The budget as a person says it: ``24.00 GiB``, or ``an rtx4090 (24.00 GiB)``."""
    size = format_gib(study.budget_bytes)
    return size if study.card is None else f"{_article(study.card)} ({size})"


def into(study: StudyRecord) -> str:
    """Where something fits: ``in 24.00 GiB``, or ``an rtx4090 (24.00 GiB)``."""
    return f"in {budget_words(study)}" if study.card is None else budget_words(study)


def card_notes(study: StudyRecord, winner: TrialRecord) -> tuple[str, ...]:
    """What to know before the winner is used on the card that it is meant for; nothing where that is the real one."""
    if not is_emulated(study):
        return ()
    lines = []
    if study.card is not None:
        lines.append(
            f"Throughput was measured on {study.environment.device_name}, not on {_article(study.card)}: "
            "that it fits carries over, how fast it is need not. `tuner run` measures it there."
        )
    small = too_small(study.budget_bytes, winner.peak_device_bytes)
    if small:
        named = " or ".join(f"{_article(card.name)} (limit {format_gib(card_limit(card))})" for card in small)
        size = format_gib(study.budget_bytes)
        lines.append(f"The winner would not fit {named}: sold as {size} too, such a card gives a process less.")
    return tuple(lines)


def too_small(nominal_bytes: int, peak_device_bytes: int | None) -> list[Card]:
    """Return the known cards of that size whose limit is below the peak."""
    if peak_device_bytes is None:
        return []
    return [c for c in CARDS if c.nominal_bytes == nominal_bytes and card_limit(c) < peak_device_bytes]


def card_limit(card: Card) -> int:
    """What peak device may reach on that card, with nothing else on it."""
    return limits(card.nominal_bytes, card.gives_bytes, "cuda").limit_bytes


def _article(name: str) -> str:
    # Read letter by letter: an A10, an L4, an RTX 4090; a T4.
    return f"{'an' if name[0] in 'alr' else 'a'} {name}"
