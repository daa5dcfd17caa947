"""compile-tuner: which torch.compile strategy is fastest among those that fit on your card."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuner.build import Applied, Plan, apply

__version__ = "0.1.0"
__all__ = ["Applied", "Plan", "__version__", "apply"]


def __getattr__(name: str) -> Any:
    # Lazy, so that `tuner --help` does not pay for what it does not use.
    if name in {"Applied", "Plan", "apply"}:
        from tuner import build

        return getattr(build, name)
    raise AttributeError(f"module 'tuner' has no attribute {name!r}")
