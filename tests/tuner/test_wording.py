"""How records are said to a person."""

from __future__ import annotations

import pytest

from tests.tuner.made import record_of
from tuner.kinds import Flag, Kind, Phase
from tuner.outcome import Outcome
from tuner.units import GIB
from tuner.wording import cause, figures, flag_words, headroom_bytes, outcome_words, result_words

LIMIT = 23 * GIB


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_outcome_has_words(outcome: Outcome) -> None:
    assert outcome_words(outcome) and "_" not in outcome_words(outcome)


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_has_words(kind: Kind) -> None:
    words = cause(record_of(Outcome.WRONG_RESULT, kind=kind, phase=Phase.STEADY))
    assert words.startswith("wrong result (") and words.endswith(") in steady") and "_" not in words


@pytest.mark.parametrize("flag", list(Flag))
def test_every_flag_is_explained(flag: Flag) -> None:
    words = flag_words(flag, "NVIDIA H200")
    assert words.startswith(f"{flag}: ")
    assert ("NVIDIA H200" in words) == (flag is Flag.EMULATED)


def test_figures_say_what_is_left_or_missing() -> None:
    fits = record_of(tokens_per_s=17084.3, peak_device_bytes=22 * GIB)
    assert figures(fits, LIMIT) == "17,084 tokens/s, 22.00 GiB, 1.00 GiB to spare"
    assert figures(record_of(Outcome.OVER_BUDGET), LIMIT) == "1,000 tokens/s, 24.00 GiB, 1.00 GiB too much"
    assert figures(record_of(Outcome.OOM), LIMIT) == ""
    assert headroom_bytes(record_of(Outcome.OOM), LIMIT) is None


def test_results_in_one_line() -> None:
    assert result_words(record_of(), LIMIT) == "ok: 1,000 tokens/s, 20.00 GiB, 3.00 GiB to spare"
    dead = record_of(Outcome.OOM, phase=Phase.FIRST_STEP, detail="2 GiB more in backward")
    assert result_words(dead, LIMIT) == "out of memory in first_step: 2 GiB more in backward"
    cut = result_words(record_of(Outcome.TIMEOUT, phase=Phase.SETTLE), LIMIT)
    assert cut == "timed out in settle; --deadline PHASE=SECONDS gives it longer"
    idle = record_of(detail="optimizer: no tensor is large enough for 8-bit state")
    assert result_words(idle, LIMIT).endswith(" to spare (optimizer: no tensor is large enough for 8-bit state)")
