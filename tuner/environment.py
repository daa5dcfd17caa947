"""Where something is measured, and the key under which it can be compared."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from tuner.workload import Frozen, Workload

PROTOCOL_VERSION = 1
"""Raised when a figure changes its meaning: older records then decide nothing."""


class Environment(Frozen):
    """What a record depends on besides workload and strategy."""

    device_name: str
    """The card's name, or the processor's."""
    device_type: Literal["cuda", "cpu"]
    device_total_bytes: int
    driver: str | None = None
    versions: dict[str, str]
    """Of torch, transformers, peft and bitsandbytes."""
    threads: int | None = None
    """Of a worker, on a CPU, where the speed depends on them; None on a card, and in records from before."""

    def key(self, workload: Workload) -> str:
        """Return the key under which records of `workload` in this environment are comparable."""
        parts: dict[str, Any] = {
            "workload": workload.digest(),
            "device": self.device_name,
            "device_type": self.device_type,
            "versions": {n: self.versions.get(n) for n in ("torch", "transformers", "peft", "bitsandbytes")},
            "protocol": PROTOCOL_VERSION,
        }
        if self.device_type == "cpu" and self.threads is not None:
            parts["threads"] = self.threads
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
