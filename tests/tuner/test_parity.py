"""Comparing loss and gradient vector with the reference's."""

from __future__ import annotations

import math

import pytest

from tests.tuner.trials import parity
from tuner.parity import TOLERANCE, fault, is_finite, relative_difference
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
