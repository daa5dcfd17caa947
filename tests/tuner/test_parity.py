"""Comparing loss and gradient vector with the reference's."""

from __future__ import annotations

import math

import pytest

from tests.tuner.trials import parity
from tuner.measured import Parity
from tuner.parity import LARGEST, TOLERANCE, Spread, fault, is_finite, relative_difference, spread
from tuner.workload import Precision


@pytest.mark.parametrize(
    ("measured", "reference", "expected"),
    [
        ([3.0, 4.0], [3.0, 4.0], 0.0),
        ([3.0, 4.5], [3.0, 4.0], 0.1),
        ([4.0, 3.0], [3.0, 4.0], math.sqrt(2) / 5),  # the norm alone would see nothing
        ([0.0], [0.0], 0.0),
        ([1e-300], [0.0], math.inf),
        ([1e200, 0.0], [2e200, 0.0], 0.5),  # squares would overflow
    ],
)
def test_relative_difference(measured: list[float], reference: list[float], expected: float) -> None:
    assert relative_difference(measured, reference) == pytest.approx(expected)


def test_vectors_of_different_length_are_an_error() -> None:
    with pytest.raises(ValueError, match="2 and 1"):
        relative_difference([1.0, 2.0], [1.0])


def test_every_precision_has_a_tolerance() -> None:
    assert set(TOLERANCE) == set(Precision)
    assert TOLERANCE[Precision.FP32_TRUE].gradient < TOLERANCE[Precision.BF16_MIXED].gradient


def test_is_finite() -> None:
    assert is_finite(parity())
    for broken in (parity(loss=math.nan), parity(gradient=(1.0, math.inf)), parity(gradient_norm=math.nan)):
        assert not is_finite(broken)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, None),
        ({"gradient": (3.0, 4.35)}, None),  # 7 %
        ({"gradient": (3.0, 4.6)}, "gradient"),  # 12 %
        ({"loss": 2.005}, None),
        ({"loss": 2.02}, "loss"),
        ({"loss": math.nan}, "loss"),
        ({"gradient": (3.0,)}, "1 elements"),
    ],
)
def test_fault(fields: dict[str, object], words: str | None) -> None:
    found = fault(parity(**fields), parity(), TOLERANCE[Precision.BF16_TRUE])
    assert (found is None) if words is None else (found is not None and words in found)


def test_roundings_grow_with_depth() -> None:
    differs = parity(gradient=(3.0, 5.0))  # 20 %
    half = TOLERANCE[Precision.BF16_MIXED]
    assert fault(differs, parity(), half, layers=2) is not None
    assert fault(differs, parity(), half, layers=32) is None
    # Masks drawn anew, as an activation memory budget of 0 with dropout does, are a fault at any depth.
    assert fault(parity(gradient=(3.0, 7.65)), parity(), half, layers=80) is not None


def test_the_norm_is_a_test_of_its_own() -> None:
    wrong = parity().model_copy(update={"gradient_norm": parity().gradient_norm * 1.1})
    assert "norm" in str(fault(wrong, parity(), TOLERANCE[Precision.BF16_MIXED], layers=32))


def test_a_small_tensor_is_not_hidden_by_a_large_one() -> None:
    reference = parity(gradient=(100.0, 100.0, 0.01, 0.01)).model_copy(update={"gradient_sizes": (2, 2)})
    wrong = reference.model_copy(update={"gradient": (100.0, 100.0, 0.0, 0.0)})
    half = TOLERANCE[Precision.BF16_MIXED]
    assert "gradient" in str(fault(wrong, reference, half, layers=2))
    # Where tokens are routed, a single expert may get none of them.
    assert fault(wrong, reference, half, layers=2, routed=True) is None


# The losses of the first steps.


def losses(*values: float) -> Parity:
    return parity(losses=(2.0, *values))


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        ((2.0, 2.0, 2.0), None),
        ((2.039, 2.15, 2.6), None),  # 2, 8 and 32 % are allowed
        ((2.05, 2.0, 2.0), "loss of step 2"),
        ((2.0, 2.2, 2.0), "loss of step 3"),
        ((2.0, 2.0, 3.0), "loss of step 4"),
        ((2.0, math.nan, 2.0), "loss of step 3"),
        ((2.0,), None),  # a trial that ended early
    ],
)
def test_the_first_losses(measured: tuple[float, ...], words: str | None) -> None:
    found = fault(losses(*measured), losses(2.0, 2.0, 2.0), TOLERANCE[Precision.BF16_TRUE])
    assert (found is None) if words is None else (found is not None and words in found)


def test_old_records_have_no_losses() -> None:
    assert fault(losses(3.0), parity(), TOLERANCE[Precision.BF16_TRUE]) is None


def test_another_optimizer_trains_on_its_own() -> None:
    assert fault(losses(3.0), losses(2.0), TOLERANCE[Precision.BF16_TRUE], later=False) is None


def test_the_loss_may_differ_more_with_every_step_and_never_by_anything() -> None:
    half = TOLERANCE[Precision.BF16_TRUE]
    allowed = [half.of_loss(step) for step in range(8)]
    assert allowed == sorted(allowed) and allowed[0] == half.loss and max(allowed) == LARGEST


# What eager runs differ by.


def test_the_spread_of_eager_runs() -> None:
    reference = losses(2.0, 2.0)
    one = losses(2.02, 2.0).model_copy(update={"gradient": (3.0, 4.5)})  # 10 %
    two = losses(2.0, 2.2).model_copy(update={"gradient": (3.0, 4.25)})
    found = spread(reference, [one, two])
    assert found is not None and found.gradient == pytest.approx(0.1)
    assert found.later_losses == pytest.approx((0.01, 0.1))


@pytest.mark.parametrize("others", [[], [parity(gradient=(1.0,))]])
def test_no_spread_without_others(others: list[Parity]) -> None:
    assert spread(parity(), others) is None


def test_with_dropout_there_is_no_spread() -> None:
    assert spread(parity(with_dropout=True), [parity(with_dropout=True)]) is None


@pytest.mark.parametrize(
    ("measured", "layers", "allowed"),
    [
        (0.01, 2, 0.08),  # below the table: the table
        (0.06, 2, 0.12),  # above half of it: twice what was measured
        (0.121, 32, 0.48),
        (0.4, 2, LARGEST),
    ],
)
def test_the_tolerance_is_twice_the_spread_where_that_is_more(measured: float, layers: int, allowed: float) -> None:
    half = TOLERANCE[Precision.BF16_MIXED].widened(Spread(gradient=measured, later_losses=()))
    assert half.of_gradient(layers) == pytest.approx(allowed)
    assert half.loss == TOLERANCE[Precision.BF16_MIXED].loss, "roundings cancel out in a mean"


def test_later_losses_widen_too() -> None:
    half = TOLERANCE[Precision.BF16_MIXED].widened(Spread(gradient=0.0, later_losses=(0.001, 0.2)))
    assert half.of_loss(1) == TOLERANCE[Precision.BF16_MIXED].of_loss(1)
    assert half.of_loss(2) == pytest.approx(0.4)


def test_nothing_measured_widens_nothing() -> None:
    assert TOLERANCE[Precision.BF16_MIXED].widened(None) == TOLERANCE[Precision.BF16_MIXED]
