"""What a budget means: margin, limit and cap."""

from __future__ import annotations

import pytest

from tuner.errors import NothingFits, WrongInput
from tuner.limits import Limits, cap, limits
from tuner.units import GIB

H200 = 150_110_000_000
CARD_24 = int(23.6 * GIB)


def gib(size_bytes: int) -> float:
    return round(size_bytes / GIB, 2)


def test_24_on_a_larger_card_is_emulated() -> None:
    found = limits(24 * GIB, H200, "cuda")
    assert found.emulated and not found.clamped
    assert (gib(found.t_bytes), gib(found.limit_bytes)) == (23.52, 22.81)
    assert found.limit_bytes == pytest.approx((0.98 * 24 - 0.03 * 0.98 * 24) * GIB, abs=2)
    first = cap(found.limit_bytes, None, "cuda")
    assert first is not None and gib(first) == 21.71
    assert cap(found.limit_bytes, GIB, "cuda") == found.limit_bytes - GIB


def test_24_on_a_24_gb_card_is_clamped_and_real() -> None:
    found = limits(24 * GIB, CARD_24, "cuda")
    assert found.clamped and not found.emulated and found.budget_bytes == CARD_24
    assert found.limit_bytes == CARD_24 - int(0.03 * CARD_24)


def test_a_desktop_lowers_t_and_not_the_card() -> None:
    found = limits(24 * GIB, CARD_24 - 2 * GIB, "cuda", total_bytes=CARD_24)
    assert not found.emulated
    assert found.limit_bytes == pytest.approx((CARD_24 - 2 * GIB) * 0.97, abs=2)


def test_what_others_hold_leaves_an_emulated_card_alone() -> None:
    assert limits(24 * GIB, H200 - 50 * GIB, "cuda", total_bytes=H200) == limits(24 * GIB, H200, "cuda")
    crowded = limits(24 * GIB, 10 * GIB, "cuda", total_bytes=H200)
    assert crowded.t_bytes == 10 * GIB and gib(crowded.limit_bytes) == 9.5


def test_from_95_percent_on_it_is_the_card_itself() -> None:
    assert limits(int(0.94 * H200), H200, "cuda").emulated
    assert not limits(int(0.96 * H200), H200, "cuda").emulated


def test_12_and_a_half_percent_over_the_card() -> None:
    assert limits(27 * GIB, 24 * GIB, "cuda").clamped
    with pytest.raises(WrongInput, match=r"12.5 % above the 24.00 GiB .* not 27.1"):
        limits(int(27.1 * GIB), 24 * GIB, "cuda")


@pytest.mark.parametrize("budget_bytes", [0, -GIB])
def test_a_budget_of_nothing(budget_bytes: int) -> None:
    for kind in ("cuda", "cpu"):
        with pytest.raises(WrongInput, match="more than nothing"):
            limits(budget_bytes, H200, kind)


def test_the_margin_alone_can_take_a_budget() -> None:
    with pytest.raises(NothingFits, match=r"margin of 0\.50 GiB"):
        limits(GIB // 2, H200, "cuda")
    tight = limits(2 * GIB, H200, "cuda")
    assert gib(tight.margin_bytes) == 0.5
    assert cap(GIB // 2, None, "cuda") == 0


def test_on_a_cpu_any_budget_is_clamped() -> None:
    found = limits(1000 * GIB, 8 * GIB, "cpu")
    assert found.clamped and not found.emulated
    assert (found.budget_bytes, found.limit_bytes) == (8 * GIB, 8 * GIB - int(0.03 * 8 * GIB))
    assert cap(found.limit_bytes, None, "cpu") is None


def test_on_a_cpu_the_margin_is_3_percent_however_small() -> None:
    found: Limits = limits(GIB // 4, 8 * GIB, "cpu")
    assert not found.clamped and found.limit_bytes == GIB // 4 - int(0.03 * (GIB // 4))


def test_a_named_card_gives_what_it_really_gives() -> None:
    gives = int(22.03 * GIB)
    found = limits(24 * GIB, H200, "cuda", gives_bytes=gives)
    assert found.emulated and (found.budget_bytes, found.t_bytes) == (24 * GIB, gives)
    assert found.limit_bytes == gives - int(0.03 * gives)
    # On one of about its size the card's own total is no reason to call it the card itself.
    near = limits(24 * GIB, CARD_24, "cuda", gives_bytes=gives)
    assert near.emulated and near.limit_bytes == found.limit_bytes
    assert limits(24 * GIB, 10 * GIB, "cuda", total_bytes=H200, gives_bytes=gives).t_bytes == 10 * GIB
