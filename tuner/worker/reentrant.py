"""Re-entrant checkpointing in the model's own code that got nothing which requires a gradient."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

SENTENCE = "the model's own code checkpoints with use_reentrant=True, and nothing that goes in requires a gradient"
"""What lies in such a part is not trained; use_reentrant=False has no such rule (torch.utils.checkpoint)."""

_starved = False


def watch() -> None:
    """Note from now on where it happens: torch only warns, once, and the backward's error does not name the cause."""
    from torch.utils import checkpoint

    global _starved
    _starved = False
    check = getattr(checkpoint, "check_backward_validity", None)
    if check is None or getattr(check, "is_ours", False):
        return

    def noting(inputs: Iterable[Any]) -> None:
        global _starved
        given = list(inputs)
        _starved = _starved or not any(isinstance(x, torch.Tensor) and x.requires_grad for x in given)
        check(given)

    noting.is_ours = True  # type: ignore[attr-defined]
    checkpoint.check_backward_validity = noting


def starved() -> bool:
    """Has it happened since `watch`?"""
    return _starved
