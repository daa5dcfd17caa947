"""Does a strategy train the same step as the reference? Pure Python; nothing here imports torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.measured import Parity
from tuner.workload import Precision

LARGEST = 0.5
"""No gradient may differ by more, however deep the model: dropout masks drawn anew make it 0.7."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The largest relative differences that count as the same step."""

    loss: float
    norm: float
    """Of the norm of the whole gradient, in which roundings cancel out."""
    gradient: float
    """Of the gradient of any one tensor, whatever the depth."""
    gradient_per_layer: float = 0.0
    """The same for each decoder layer: roundings grow with the depth that they pass through."""

    def of_gradient(self, layers: int | None) -> float:
        """Return what the gradient of one tensor may differ by in a model of so many layers."""
        return min(LARGEST, max(self.gradient, self.gradient_per_layer * (layers or 0)))


_FULL = Tolerance(loss=1e-3, norm=1e-2, gradient=1e-2)
_HALF = Tolerance(loss=5e-3, norm=3e-2, gradient=0.08, gradient_per_layer=0.015)

TOLERANCE: dict[Precision, Tolerance] = {
    Precision.FP32_TRUE: _FULL,
    Precision.BF16_TRUE: _HALF,
    Precision.BF16_MIXED: _HALF,
    Precision.FP16_MIXED: _HALF,
}
"""By precision. In 16 bits, 32 layers of random weights on an H200: eager against eager at another
micro-batch differs by up to 0.14 in one tensor, compiled against eager by up to 0.23, while loss and
norm agree to 0.0001 and 0.001 (studies/records). At 2 layers healthy strategies stay under 0.02, and
the faults that are known differ by 0.18 and more."""


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


def fault(
    parity: Parity, reference: Parity, tolerance: Tolerance, *, layers: int | None = None, routed: bool = False
) -> str | None:
    """Return one sentence that says how the step differs from the reference's; None: it is the same.

    Args:
        layers: of the model; None: not known, and the tolerance is that of a shallow one.
        routed: a mixture of experts. A rounding may send a token to another expert, so that single
            tensors may differ by anything; the sample is then compared as one vector.
    """
    if len(parity.gradient) != len(reference.gradient):
        return f"the gradient sample has {len(parity.gradient)} elements, the reference's {len(reference.gradient)}"
    for name, difference, allowed in (
        ("loss", relative_difference([parity.loss], [reference.loss]), tolerance.loss),
        ("gradient's norm", relative_difference([parity.gradient_norm], [reference.gradient_norm]), tolerance.norm),
        ("gradient", _gradient_difference(parity, reference, routed), tolerance.of_gradient(layers)),
    ):
        # Written so that a NaN, which compares with nothing, is a fault.
        if not difference <= allowed:
            return f"the {name} differs from the reference's by {difference:.2%}, and {allowed:.2%} is allowed"
    return None


def _gradient_difference(parity: Parity, reference: Parity, routed: bool) -> float:
    if routed:
        return relative_difference(parity.gradient, reference.gradient)
    return worst_difference(parity, reference)


def worst_difference(parity: Parity, reference: Parity) -> float:
    """Return the largest relative difference of any sampled tensor's gradient.

    Tensor by tensor: in one vector the few with large gradients would hide all others.
    """
    sizes = reference.gradient_sizes or (len(reference.gradient),)
    ends = list(itertools.accumulate(sizes))
    parts = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    found = [relative_difference(parity.gradient[part], reference.gradient[part]) for part in parts]
    return math.nan if any(map(math.isnan, found)) else max(found, default=0.0)
