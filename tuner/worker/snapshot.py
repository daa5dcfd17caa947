"""The allocator's snapshot: who holds what at an out-of-memory, or in a step that a person asks for."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from tuner.units import format_size

OUT_OF_MEMORY_FILE = "out-of-memory.pickle"
STEP_FILE = "memory.pickle"
"""In the trial's folder; both open in pytorch.org/memory_viz."""
LARGEST = 10
ENTRIES = 100_000
"""Of the history of one step, a few hundred bytes each; older ones are overwritten."""

_TORCH = str(Path(torch.__file__).parent)
_LIVE = ("active_allocated", "active_awaiting_free", "active_pending_free")
_UNKNOWN = "where no Python line was on the stack (autograd's backward), or before it was recorded"
_CANNOT = (AttributeError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError, pickle.PicklingError)
"""What goes wrong where a torch lacks what is used here, or a disk is full. It must not end the trial."""


class History:
    """Has the allocator remember which line asked for each live block, and keeps its snapshot.

    On from `load` until `settle` ends, never in `steady`, and beside CUDA graphs in `load` alone. In
    the mode ``state`` the allocator keeps a stack for what is live now and no list of what happened;
    torch's own figure is 2 µs an allocation. What is allocated later has no stack, and is told as such.

    Args:
        folder: the trial's; None keeps nothing.
        generated: the folder of compiled code, TORCHINDUCTOR_CACHE_DIR.
    """

    def __init__(self, device: torch.device, folder: Path | None, generated: str) -> None:
        self.problem: str | None = None
        """Why there is no snapshot where one was due."""
        self.seconds = 0.0
        """What keeping snapshots took."""
        self._folder = folder.resolve() if folder is not None and device.type == "cuda" else None
        self._generated = generated
        self._kept: dict[str, tuple[str, ...]] = {}
        """The largest blocks of each file that was written."""

    def start(self) -> None:
        """Begin to remember, and keep the state of the moment at any out-of-memory from here on."""
        if self._folder is None:
            return
        try:
            torch.cuda.init()
            torch._C._cuda_attach_out_of_memory_observer(self._out_of_memory)  # type: ignore[attr-defined]
            torch.cuda.memory._record_memory_history("state", context="state", stacks="python")
        except _CANNOT as error:
            self.problem = f"{type(error).__name__}: {error}"

    def follow(self) -> None:
        """Remember each allocation and free as well: for the one step that is asked for, a timeline."""
        self._record("all", context="all", stacks="python", max_entries=ENTRIES)

    def stop(self) -> None:
        """Remember no more."""
        self._record(None)

    def keep_step(self) -> None:
        """Keep the snapshot of now."""
        self._keep(STEP_FILE)

    def result(self, out_of_memory: bool) -> tuple[str | None, tuple[str, ...]]:
        """Return the snapshot's file name and its largest blocks in words; `out_of_memory`: that is how it ended.

        The snapshot of an out-of-memory that was caught, as autotuning catches them, is removed.
        """
        if out_of_memory and OUT_OF_MEMORY_FILE in self._kept:
            return OUT_OF_MEMORY_FILE, self._kept[OUT_OF_MEMORY_FILE]
        if self._folder is not None:
            (self._folder / OUT_OF_MEMORY_FILE).unlink(missing_ok=True)
        return (STEP_FILE, self._kept[STEP_FILE]) if STEP_FILE in self._kept else (None, ())

    def _record(self, enabled: str | None, **options: Any) -> None:
        if self._folder is None or self.problem is not None:
            return
        try:
            torch.cuda.memory._record_memory_history(enabled, **options)  # type: ignore[arg-type]
        except _CANNOT as error:
            self.problem = f"{type(error).__name__}: {error}"

    def _out_of_memory(self, *_device_and_sizes: int) -> None:
        # Called by the allocator before it raises: what is raised here would stand in for its own error.
        self._keep(OUT_OF_MEMORY_FILE)

    def _keep(self, name: str) -> None:
        if self._folder is None:
            return
        started = time.perf_counter()
        try:
            snapshot = torch.cuda.memory._snapshot()
            with (self._folder / name).open("wb") as stream:
                pickle.dump(snapshot, stream)
            self._kept[name] = largest_blocks(snapshot, self._generated)
        except _CANNOT as error:
            self.problem = f"{type(error).__name__}: {error}"
        self.seconds += time.perf_counter() - started


def largest_blocks(snapshot: dict[str, Any], generated: str = "") -> tuple[str, ...]:
    """Return what the live blocks of a snapshot were allocated for, the largest sums first, ten at most.

    Blocks that the same line asked for are one entry: ``4.00 GiB in 32 blocks: modeling_llama.py:253 forward``.
    """
    sizes: dict[str, list[int]] = {}
    for segment in snapshot.get("segments", ()):
        for block in segment.get("blocks", ()):
            if block.get("state") in _LIVE:
                sizes.setdefault(_site(block.get("frames") or (), generated), []).append(int(block["size"]))
    ordered = sorted(sizes.items(), key=lambda entry: -sum(entry[1]))
    return tuple(_words(site, found) for site, found in ordered[:LARGEST])


def _words(site: str, sizes: list[int]) -> str:
    many = "" if len(sizes) == 1 else f" in {len(sizes)} blocks, the largest {format_size(max(sizes))}"
    return f"{format_size(sum(sizes))}{many}: {site}"


def _site(frames: Any, generated: str) -> str:
    """Return the innermost line outside torch; beside compiled code also the line that called it."""
    outside = [_place(frame) for frame in _outside_torch(frames, generated)]
    if any(_is_generated(str(frame.get("filename", "")), generated) for frame in frames):
        return f"compiled code, called from {outside[0]}" if outside else "compiled code, in its backward"
    return outside[0] if outside else _UNKNOWN


def _outside_torch(frames: Any, generated: str) -> Iterator[dict[str, Any]]:
    for frame in frames:
        name = str(frame.get("filename", ""))
        if name and not name.startswith(("<", "??", _TORCH)) and not _is_generated(name, generated):
            yield frame


def _is_generated(name: str, generated: str) -> bool:
    return "torchinductor_" in name or bool(generated and name.startswith(generated))


def _place(frame: dict[str, Any]) -> str:
    path = str(frame["filename"])
    _, library, short = path.partition("site-packages/")
    return f"{short if library else path}:{frame.get('line', '?')} {frame.get('name', '')}".rstrip()
