"""Does a strategy train the same step as the reference? Pure Python; nothing here imports torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tuner.measured import Parity
from tuner.workload import Precision

LARGEST = 0.5
"""No gradient may differ by more, however deep the model: dropout masks drawn anew make it 0.7."""
LOSS_GROWTH = 4.0
"""How much more the loss of each further step may differ. AdamW's first step moves every element by the learning
rate, whatever the size of its gradient, so what only rounding decides goes either way; from there it grows.
Healthy runs of 8 small layers in bf16 stay within 0.01 % for four steps; no figure is there for large models."""
OVER_EAGER = 2.0
"""What is allowed against the largest difference between eager runs of the study."""


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
    later_losses: tuple[float, ...] = ()
    """Of the losses of the steps after the first, where eager runs differ by much."""

    def of_gradient(self, layers: int | None) -> float:
        """Return what the gradient of one tensor may differ by in a model of so many layers."""
        return min(LARGEST, max(self.gradient, self.gradient_per_layer * (layers or 0)))

    def of_loss(self, step: int) -> float:
        """Return what the loss of optimizer step `step`, from 0, may differ by."""
        if step == 0:
            return self.loss
        measured = self.later_losses[step - 1] if step <= len(self.later_losses) else 0.0
        return min(LARGEST, max(self.loss * LOSS_GROWTH**step, measured))

    def widened(self, spread: Spread | None) -> Tolerance:
        """Return this tolerance, raised where eager runs differ from each other by more than half of it."""
        if spread is None:
            return self
        return replace(
            self,
            gradient=max(self.gradient, OVER_EAGER * spread.gradient),
            later_losses=tuple(OVER_EAGER * difference for difference in spread.later_losses),
        )


@dataclass(frozen=True, slots=True)
class Spread:
    """The largest relative differences between the reference and other eager runs on the same data."""

    gradient: float
    """Of one tensor."""
    later_losses: tuple[float, ...]
    """Of the losses of the steps after the first."""


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
    parity: Parity,
    reference: Parity,
    tolerance: Tolerance,
    *,
    layers: int | None = None,
    routed: bool = False,
    later: bool = True,
    other: str = "the reference",
) -> str | None:
    """Return one sentence that says how the step differs from the reference's; None: it is the same.

    Args:
        layers: of the model; None: not known, and the tolerance is that of a shallow one.
        routed: a mixture of experts. A rounding may send a token to another expert, so that single
            tensors may differ by anything; the sample is then compared as one vector.
        later: compare the losses of the steps after the first too; not where the optimizer is another.
        other: what it is compared with, for the sentence.
    """
    if len(parity.gradient) != len(reference.gradient):
        return f"the gradient sample has {len(parity.gradient)} elements, the reference's {len(reference.gradient)}"
    for name, difference, allowed in (
        ("loss", relative_difference([parity.loss], [reference.loss]), tolerance.loss),
        ("gradient's norm", relative_difference([parity.gradient_norm], [reference.gradient_norm]), tolerance.norm),
        ("gradient", _gradient_difference(parity, reference, routed), tolerance.of_gradient(layers)),
        *(_later_losses(parity, reference, tolerance) if later else ()),
    ):
        # Written so that a NaN, which compares with nothing, is a fault.
        if not difference <= allowed:
            return f"the {name} differs from {other}'s by {difference:.2%}, and {allowed:.2%} is allowed"
    return None


def agreement(parity: Parity, reference: Parity, routed: bool = False) -> str:
    """Return how well two steps agree, in words."""
    loss = relative_difference([parity.loss], [reference.loss])
    return f"the loss differs by {loss:.2%}, the gradient by {_gradient_difference(parity, reference, routed):.2%}"


def spread(reference: Parity, others: Iterable[Parity], routed: bool = False) -> Spread | None:
    """Return how much eager runs differ from the reference; None: there is none to compare.

    Args:
        others: of the same workload, seed and optimizer.
    """
    alike = [p for p in others if len(p.gradient) == len(reference.gradient)]
    if not alike or reference.with_dropout:
        return None
    steps = range(1, min(len(p.losses) for p in (reference, *alike)))
    return Spread(
        gradient=max(_gradient_difference(p, reference, routed) for p in alike),
        later_losses=tuple(max(_loss_difference(p, reference, step) for p in alike) for step in steps),
    )


def _later_losses(parity: Parity, reference: Parity, tolerance: Tolerance) -> list[tuple[str, float, float]]:
    steps = range(1, min(len(parity.losses), len(reference.losses)))
    return [(f"loss of step {n + 1}", _loss_difference(parity, reference, n), tolerance.of_loss(n)) for n in steps]


def _loss_difference(parity: Parity, reference: Parity, step: int) -> float:
    return relative_difference([parity.losses[step]], [reference.losses[step]])


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
