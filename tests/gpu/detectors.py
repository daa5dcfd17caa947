"""What each detector costs a trial, in milliseconds and bytes, and that none raises a phase's peak.

    python tests/gpu/detectors.py -o OUT/detectors.json --seconds 200
    python tests/gpu/detectors.py -o /tmp/detectors.json --device cpu --tiny --only eager

For eager, default and reduce-overhead, two layers of the 7B shape, three trials each, every one in a
process of its own: as it is (`on`: milliseconds, and each phase's peaks), with all detectors taken out
(`off`: the peaks to compare with; the product has no such switch, so they are replaced here), and
once more with the memory around each detector looked at (`bytes`: resets of the peak counter spoil that
trial's own peaks). A detector that looks at a whole optimizer step has that step in its figures.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.gpu import forked
from tuner.units import GIB

MODES: dict[str, dict[str, Any]] = {
    "eager": {},
    "default": {"mode": "default", "scope": "layer"},
    "reduce-overhead": {"mode": "reduce-overhead", "scope": "layer"},
}
RUNS = ("on", "off", "bytes")
SAME_BYTES = {"cuda": 2 * 2**20, "cpu": 32 * 2**20}
"""What a phase's peak may differ by from run to run: on a card one of the allocator's small segments."""


# Taking detectors out


def _nothing(*_: Any, **__: Any) -> None:
    return None


class _NoProbe:
    """In place of the parity probe: says that all is well."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def take(self) -> None:
        """Look at nothing."""

    def finish(self, loss: float, *_: Any, **__: Any) -> Any:
        """Return a parity that nothing is wrong with."""
        from tuner.measured import Parity

        return Parity(loss=loss, gradient=(), gradient_norm=1.0, tensors_without_gradient=0, parameter_changed=True)


TAKEN_OUT: dict[str, tuple[tuple[str, str, Any], ...]] = {
    "parity": (("tuner.worker.measure", "ParityProbe", _NoProbe), ("tuner.worker.first_step", "ParityProbe", _NoProbe)),
    "coverage": (("tuner.worker.settling", "Settling._observe", _nothing),),
    "memory_ledger": (("tuner.worker.settling", "Settling._take_stock", _nothing),),
    "saved_state": (
        ("tuner.worker.measure", "SavedState", _nothing),
        ("tuner.worker.measure", "Trial.saved_state", _nothing),
    ),
    "clocks": (("tuner.worker.measure", "open_clocks", _nothing),),
    "what dynamo says": (("tuner.worker.health", "CompileHealth._listen", _nothing),),
    "the allocator's history": (("tuner.worker.snapshot", "History.start", _nothing),),
    "graph_pools": (("tuner.worker.memory", "Memory.graph_pool_bytes", _nothing),),
}
"""By detector: module, name and what stands in for it, wherever it may be."""


def take_out() -> list[str]:
    """Replace the detectors; return those that are nowhere to be found."""
    return [name for name, places in TAKEN_OUT.items() if not any([_replace(*place) for place in places])]


def _replace(module: str, name: str, stand_in: Any) -> bool:
    try:
        target: Any = importlib.import_module(module)
        *path, last = name.split(".")
        for part in path:
            target = getattr(target, part)
        getattr(target, last)
    except (ImportError, AttributeError):
        return False
    setattr(target, last, stand_in)
    return True


# Looking at their memory


def look_at_bytes(found: dict[str, dict[str, int]], device: str) -> None:
    """From now on keep in `found` what each detector's block takes at most and leaves behind."""
    from tuner.worker.measurement import Measurement

    original = Measurement.detecting

    @contextlib.contextmanager
    def looking(self: Any, detector: str) -> Iterator[None]:
        before = _held(device, reset=True)
        with original(self, detector):
            yield
        most, left = _most(device) - before, _held(device, reset=False) - before
        known = found.setdefault(detector, {"most_bytes": 0, "left_bytes": 0})
        known["most_bytes"] = max(known["most_bytes"], most)
        known["left_bytes"] += left

    Measurement.detecting = looking  # type: ignore[method-assign]


def _held(device: str, reset: bool) -> int:
    import torch

    if device == "cpu":
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    if not torch.cuda.is_initialized():
        return 0
    torch.cuda.synchronize()
    if reset:
        torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def _most(device: str) -> int:
    import torch

    if device == "cpu":
        line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    if not torch.cuda.is_initialized():
        return 0
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


# The trials


def trial(mode: str, how: str, device: str, tiny: bool) -> dict[str, Any]:
    """Run one trial with the detectors on, off, or looked at."""
    from tests.gpu import inside

    taken: dict[str, dict[str, int]] = {}
    missing = take_out() if how == "off" else []
    if how == "bytes":
        look_at_bytes(taken, device)
    workload = inside.shaped("llama-7b", tiny, layers=2, tokens=1024)
    began = time.perf_counter()
    folder = Path(tempfile.mkdtemp(prefix="trial-"))
    ran = inside.run(inside.request(workload, device, MODES[mode], limit_bytes=100 * GIB), folder)
    return ran.told() | {
        "settle_step_seconds": statistics.median(ran.step_seconds("settle") or [0.0]),
        "wall_seconds": time.perf_counter() - began,
        "not_there": missing,
        "bytes": taken,
        "allocated": ran.peaks("allocated_bytes"),
        "reserved": ran.peaks("reserved_bytes"),
        "resident": ran.peaks("device_bytes") if device == "cpu" else None,
    }


def cases(device: str, tiny: bool) -> dict[str, forked.Case]:
    """Return all trials by name."""

    def case(mode: str, how: str) -> Callable[[], Any]:
        return lambda: trial(mode, how, device, tiny)

    return {f"{mode} {how}": case(mode, how) for mode in MODES for how in RUNS}


def table(found: dict[str, Any], device: str) -> list[str]:
    """Return the table, one line for each detector, and below it how the phases' peaks compare."""
    lines = [f"{'detector':<16}" + "".join(f"{mode:>42}" for mode in MODES)]
    detectors = sorted({d for m in MODES for d in found.get(f"{m} on", {}).get("detector_seconds", {})})
    for detector in detectors:
        cells = []
        for mode in MODES:
            seconds = found.get(f"{mode} on", {}).get("detector_seconds", {}).get(detector)
            taken = found.get(f"{mode} bytes", {}).get("bytes", {}).get(detector)
            spent = "" if seconds is None else f"{seconds * 1000:,.1f} ms"
            memory = "" if taken is None else f", {taken['most_bytes']:,} B (left {taken['left_bytes']:,})"
            cells.append(f"{spent + memory:>42}")
        lines.append(f"{detector:<16}" + "".join(cells))
    for mode in MODES:
        on, off = found.get(f"{mode} on", {}), found.get(f"{mode} off", {})
        for kind in ("resident",) if device == "cpu" else ("allocated", "reserved"):
            lines.append(f"{mode}, {kind}, on less off: {_compared(on.get(kind), off.get(kind), SAME_BYTES[device])}")
        if on and off and "error" not in on | off:
            steps = " ms, off ".join(f"{run['settle_step_seconds'] * 1000:.1f}" for run in (on, off))
            missing = ", ".join(off["not_there"]) or "none"
            lines.append(f"{mode}: a step of settle, median: on {steps} ms; detectors not found and left in: {missing}")
    return lines


def _compared(on: dict[str, int | None] | None, off: dict[str, int | None] | None, same: int) -> str:
    if not on or not off:
        return "not both trials ran"
    parts = []
    for phase in on:
        a, b = on[phase], off.get(phase)
        if a is not None and b is not None:
            parts.append(f"{phase} {a - b:+,} B{' RAISED' if a - b > same else ''}")
    return ", ".join(parts)


def main() -> None:
    """Run the trials and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--each", type=float, default=100)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--at-once", type=int, default=1, help="of the trials whose milliseconds do not count")
    parser.add_argument("--only", help="modes with commas between")
    args, _ = parser.parse_known_args()
    forked.prepare(threads=1 if args.device == "cpu" else 8, compilers=2 if args.device == "cpu" else 8)
    modes = args.only.split(",") if args.only else list(MODES)
    made = {n: c for n, c in cases(args.device, args.tiny).items() if n.split()[0] in modes}
    forked.serve(made)
    forked.load()
    spawn = forked.how_to_start(args.device, __file__, sys.argv[1:])
    found: dict[str, Any] = {}
    for at_once, wanted in ((1, ("on",)), (args.at_once, ("off", "bytes"))):
        some = {name: case for name, case in made.items() if name.split()[1] in wanted}
        for name, came in forked.run_all(
            some, at_once=at_once, seconds=forked.left_of(args.seconds), each=args.each, spawn=spawn
        ):
            found[name] = came
            said = came.get("error") or f"{came['outcome']} {came['detail']}"
            print(f"{name}: {said} ({came.get('seconds', '?')} s)", flush=True)
            forked.keep(args.output, {"runs": found})
    lines = table(found, args.device)
    print("\n".join(lines), flush=True)
    forked.keep(args.output, {"table": lines, "runs": found})


if __name__ == "__main__":
    main()
