"""Does a strategy train the same step as the reference? Pure Python; nothing here imports torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.protocol import Parity
from tuner.workload import Precision


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The largest relative differences that count as the same step."""

    loss: float
    gradient: float


_FULL = Tolerance(loss=1e-3, gradient=1e-2)
_HALF = Tolerance(loss=2e-2, gradient=0.10)

TOLERANCE: dict[Precision, Tolerance] = {
    Precision.FP32_TRUE: _FULL,
    Precision.BF16_TRUE: _HALF,
    Precision.BF16_MIXED: _HALF,
    Precision.FP16_MIXED: _HALF,
}
"""By precision: eager against eager differs by up to 1.6 % in the gradient in 16 bits (real faults: 18 % and more)."""


def relative_difference(measured: Sequence[float], reference: Sequence[float]) -> float:
    """Return ``|measured - reference| / |reference|`` (Euclidean norms).

    Infinite where the reference is zero and the other is not; NaN where either has a NaN.

    Raises:
        ValueError: the two are not of the same length.
    """
    if len(measured) != len(reference):
        raise ValueError(f"vectors of {len(measured)} and {len(reference)} elements cannot be compared")
    difference, size = math.dist(measured, reference), math.hypot(*reference)
    if size == 0:
        return 0.0 if difference == 0 else difference * math.inf
    return difference / size


def is_finite(parity: Parity) -> bool:
    """Are loss and gradient free of NaN and infinity?"""
    return all(map(math.isfinite, (parity.loss, parity.gradient_norm, *parity.gradient)))


def fault(parity: Parity, reference: Parity, tolerance: Tolerance) -> str | None:
    """Return one sentence that says how the step differs from the reference's; None: it is the same."""
    if len(parity.gradient) != len(reference.gradient):
        return f"the gradient sample has {len(parity.gradient)} elements, the reference's {len(reference.gradient)}"
    for name, difference, allowed in (
        ("loss", relative_difference([parity.loss], [reference.loss]), tolerance.loss),
        ("gradient vector", relative_difference(parity.gradient, reference.gradient), tolerance.gradient),
    ):
        # Written so that a NaN, which compares with nothing, is a fault.
        if not difference <= allowed:
            return f"the {name} differs from the reference's by {difference:.2%}, and {allowed:.2%} is allowed"
    return None
