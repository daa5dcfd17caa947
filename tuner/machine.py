"""What the check of the machine says, between its child, its parent and the file that keeps it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tuner.workload import Frozen

DISTRIBUTIONS = ("torch", "transformers", "peft", "bitsandbytes")
"""What a record's key depends on."""


class CheckItem(Frozen):
    """One thing that was looked at."""

    name: str
    ok: bool
    value: str
    """What was found, for a person."""
    advice: str = ""
    """What to do about it; empty where it is as it should be."""


class ChildFacts(Frozen):
    """What only a process with torch can tell."""

    device_name: str | None = None
    cuda_total_bytes: int | None = None
    """As CUDA reports it, never as NVML does (which counts the driver's own share too). None on a CPU."""
    multiprocessors: int | None = None
    capability: str | None = None
    """Of the card, as ``9.0``."""
    cuda_version: str | None = None
    """That torch was built for."""
    triton: str | None = None
    bitsandbytes_usable: bool = False


class ChildReport(Frozen):
    """Written anew by the child after every stage, so that a child that dies has still said where."""

    stage: Literal["torch", "device", "dynamo", "triton", "compile", "bitsandbytes", "done"]
    """The stage it is in, or died in."""
    items: tuple[CheckItem, ...] = ()
    facts: ChildFacts = ChildFacts()
    compile_seconds: float | None = None
    """None: the tiny compile did not succeed."""


class MachineFacts(ChildFacts):
    """What is known of the machine without asking it again."""

    device: str
    """As the user says it: ``cuda:0`` or ``cpu``."""
    driver: str | None = None
    """NVIDIA's driver; None where there is none."""
    python: str
    versions: dict[str, str] = Field(default_factory=dict)
    """Of `DISTRIBUTIONS`; one that is not installed is left out."""


class CheckResult(Frozen):
    """Can this machine do the work?"""

    items: tuple[CheckItem, ...]
    can_run: bool
    """torch and dynamo can be imported and the device works: eager strategies can be measured."""
    can_compile: bool
    """A tiny function was compiled, ran forward and backward on the device."""
    reason: str = ""
    """One sentence: why not; empty where it can."""
    facts: MachineFacts
    kept: bool = False
    """The child's part comes from an earlier check of the same environment."""
