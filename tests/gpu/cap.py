"""Only the cap decides: what needs more dies under it, what needs less lives. The product's own workers.

    python tests/gpu/cap.py -o OUT/cap.json --stage shared      # without a cap, and one that is too low
    python tests/gpu/cap.py -o OUT/cap.json --stage alone       # one that is high enough, after the first
    python tests/gpu/cap.py -o /tmp/cap.json --device cpu --tiny --at-once 1

For eager, default and reduce-overhead, four layers of the 7B shape at 1024 tokens. `shared` may run
beside others, several workers at once: it judges by the allocator's figures. `alone` wants the card for
itself, as it judges the device's. On a CPU the limit on resident memory stands for the cap.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from strategies.knob import Value
from tuner import device as devices
from tuner import nvml
from tuner.device import CardMeter
from tuner.launcher import Launcher, default_deadlines
from tuner.limits import ASSUMED_OUTSIDE_BYTES, limits
from tuner.outcome import classify
from tuner.protocol import Attempt, TrialRequest
from tuner.requests import Requests
from tuner.shapes import SHAPES
from tuner.space import canonical
from tuner.units import GIB, format_gib
from tuner.watcher import Worker
from tuner.workload import Adapter, Lengths, ModelKind, Precision, Workload

MODES: dict[str, dict[str, Value]] = {
    "eager": {},
    "default": {"mode": "default", "scope": "layer"},
    "reduce-overhead": {"mode": "reduce-overhead", "scope": "layer"},
}
ONE_PERCENT = 0.01
ON_CPU = 0.15
"""In place of one per cent: resident memory differs from run to run."""
UNCAPPED_BYTES = 100 * GIB
WAIT_S = 150.0


def workload(tiny: bool) -> Workload:
    """Return what is trained."""
    shape = "tiny" if tiny else "llama-7b"
    wide = {"hidden_size": 256, "intermediate_size": 704, "vocab_size": 8192} if tiny else {}
    return Workload(
        model=shape,
        model_kind=ModelKind.SHAPE,
        config=SHAPES[shape] | wide,
        adapter=Adapter.LORA,
        precision=Precision.FP32_TRUE if tiny else Precision.BF16_MIXED,
        lengths=Lengths.fixed(256 if tiny else 1024),
        batch_size=2,
    ).model_copy(update={"depth": 2 if tiny else 4})


class Caps:
    """Starts workers under caps of our choosing."""

    def __init__(self, device: str, tiny: bool, folder: Path) -> None:
        self.device, self.folder = device, folder
        self.card = nvml.list_cards()[0] if device == "cuda" else None
        self.base = devices.read_base_line(self.card.uuid) if self.card else None
        self.launcher = Launcher(os.environ)
        total = self.card.total_bytes if self.card else UNCAPPED_BYTES
        self.requests = Requests(
            study="cap", key="cap", workload=workload(tiny), device_type="cuda" if self.card else "cpu",
            device_uuid=self.card.uuid if self.card else None, limits=limits(total, total, "cuda"),
            deadlines=default_deadlines(0), seed=0, root=folder, cold=True,
        )  # fmt: skip

    def start(self, name: str, mode: str, cap_bytes: int | None, limit_bytes: int, alone: bool) -> Worker:
        """Start a worker; every one compiles with an empty cache, or the second would not autotune."""
        trial = self.requests.folder(name)
        asked = self.requests.make(canonical(MODES[mode]), trial, role="run")
        asked = asked.model_copy(update=self._short(asked, cap_bytes, limit_bytes))
        meter = None
        if self.card is not None:
            base = devices.read_base_line(self.card.uuid)
            meter = CardMeter(self.card.uuid, base, ignore_others=not alone)
        return self.launcher.start(asked, trial, None, meter)

    def _short(self, asked: TrialRequest, cap_bytes: int | None, limit_bytes: int) -> dict[str, Any]:
        compilers = {"TORCHINDUCTOR_COMPILE_THREADS": "4"} if self.card else {}
        base = {} if self.base is None else {"base_line_bytes": self.base.held_bytes}
        short = {"steady_steps": 2, "steady_micro_batches": 2, "steady_seconds": 0.5}
        return (
            base
            | short
            | {
                "cap_bytes": cap_bytes if self.card else None,
                "limit_bytes": limit_bytes,
                "environment": asked.environment | compilers,
            }
        )


def told(attempt: Attempt | None, alone: bool) -> dict[str, Any]:
    """Return what is kept of an attempt."""
    if attempt is None:
        return {"outcome": None, "detail": f"not ended after {WAIT_S:.0f} s"}
    verdict = classify(attempt)
    phases = attempt.result.phases if attempt.result else ()
    allocated = [p.allocated_bytes for p in phases if p.allocated_bytes is not None]
    reserved = [p.reserved_bytes for p in phases if p.reserved_bytes is not None]
    return {
        "outcome": str(verdict.outcome),
        "phase": verdict.phase,
        "detail": verdict.detail,
        "peak_allocated_bytes": max(allocated, default=None),
        "peak_reserved_bytes": max(reserved, default=None),
        "peak_device_bytes": verdict.peak_device_bytes if alone or attempt.request.device_type == "cpu" else None,
        "limit_bytes": attempt.request.limit_bytes,
        "cap_bytes": attempt.request.cap_bytes,
        "phases": [p.model_dump(mode="json") for p in phases],
        "notes": list(attempt.result.notes) if attempt.result else [],
        "snapshot": attempt.result.snapshot if attempt.result else None,
        "largest_blocks": list(attempt.result.largest_blocks) if attempt.result else [],
        "detector_seconds": attempt.result.detector_seconds if attempt.result else {},
        "seconds": attempt.seconds,
        "tail": "" if str(verdict.outcome) in ("ok", "oom") else attempt.tail[-1500:],
    }


def too_low(row: dict[str, Any], on_card: bool) -> int:
    """Return a cap that the peak allocated is more than one per cent above."""
    if not on_card:
        return int(row["peak_device_bytes"] * (1 - ON_CPU))
    return int(row["peak_allocated_bytes"] / (1 + ONE_PERCENT)) - 1


def high_enough(row: dict[str, Any], on_card: bool) -> int:
    """Return a cap that the peak reserved without one is one per cent below."""
    if not on_card:
        return int(row["peak_device_bytes"] * (1 + ON_CPU))
    return int(row["peak_reserved_bytes"] / (1 - ONE_PERCENT)) + 1


def run_some(
    caps: Caps, wanted: list[tuple[str, str, int | None, int]], at_once: int, alone: bool, ends: float
) -> Iterator[Any]:
    """Run workers, `at_once` at a time and until `ends`; yield name and what is kept of each."""
    left, running = list(wanted), list[tuple[str, Worker, float]]()
    while left or running:
        while left and len(running) < at_once and time.monotonic() < ends:
            name, mode, cap_bytes, limit_bytes = left.pop(0)
            worker = caps.start(name.replace(" ", "-"), mode, cap_bytes, limit_bytes, alone)
            running.append((name, worker, time.monotonic()))
        if not running:
            return
        time.sleep(0.1)
        for entry in list(running):
            name, worker, began = entry
            attempt = worker.poll()
            now = time.monotonic()
            if attempt is None and (now - began > WAIT_S or now > ends):
                attempt = _killed(worker)
            elif attempt is None:
                continue
            running.remove(entry)
            yield name, told(attempt, alone)


def _killed(worker: Worker) -> Attempt | None:
    from tuner.kinds import KillReason

    worker.kill(KillReason.DEADLINE)
    return worker.wait(30)


def judge(found: dict[str, Any], on_card: bool) -> dict[str, str]:
    """Say for each mode whether the cap decided as it must."""
    said = {}
    for mode in MODES:
        free, low, high = (found.get(f"{mode} {name}") for name in ("uncapped", "dies", "lives"))
        if not free or free["outcome"] != "ok":
            said[mode] = f"no figures without a cap: {free and free['detail']}"
            continue
        names = ("allocated", "reserved") if on_card else ("device",)
        parts = ["without a cap " + ", ".join(f"{n} {format_gib(free[f'peak_{n}_bytes'])}" for n in names)]
        if low:
            right = low["outcome"] == "oom"
            cap = format_gib(low["cap_bytes"] if on_card else low["limit_bytes"])
            parts.append(f"{'right' if right else 'WRONG'}: under {cap} {low['outcome']} in {low['phase']}")
        if high:
            right = high["outcome"] == "ok" and high["peak_device_bytes"] <= high["limit_bytes"]
            cap = format_gib(high["cap_bytes"] if on_card else high["limit_bytes"])
            device = format_gib(high["peak_device_bytes"])
            parts.append(
                f"{'right' if right else 'WRONG'}: under {cap} {high['outcome']}, peak device {device} of a limit of "
                f"{format_gib(high['limit_bytes'])} {high['detail']}"
            )
        said[mode] = "; ".join(parts)
    return said


def main() -> None:
    """Run the stages."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--stage", choices=["shared", "alone", "both"], default="both")
    parser.add_argument("--seconds", type=float, default=250)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--only", help="modes with commas between")
    args = parser.parse_args()
    ends, on_card = time.monotonic() + args.seconds, args.device == "cuda"
    found: dict[str, Any] = json.loads(args.output.read_text())["runs"] if args.output.exists() else {}
    modes = [m for m in MODES if not args.only or m in args.only.split(",")]

    def save() -> None:
        args.output.write_text(json.dumps({"said": judge(found, on_card), "runs": found}, indent=1))

    def go(wanted: list[tuple[str, str, int | None, int]], at_once: int, alone: bool) -> None:
        if not wanted or time.monotonic() > ends:
            return
        for name, row in run_some(caps, wanted, at_once, alone, ends):
            found[name] = row
            print(f"{name}: {row['outcome']} {row['detail']} ({row.get('seconds', 0):.0f} s)", flush=True)
            save()

    with tempfile.TemporaryDirectory(prefix="cap-", ignore_cleanup_errors=True) as folder:
        caps = Caps(args.device, args.tiny, Path(folder))
        free_limit = caps.requests.limits.limit_bytes
        if args.stage != "alone":
            go([(f"{m} uncapped", m, None, free_limit) for m in modes], args.at_once, False)
            good = [m for m in modes if found.get(f"{m} uncapped", {}).get("outcome") == "ok"]
            low = {m: too_low(found[f"{m} uncapped"], on_card) for m in good}
            limit_of = {m: free_limit if on_card else low[m] for m in good}
            go([(f"{m} dies", m, low[m], limit_of[m]) for m in good], args.at_once, False)
        if args.stage != "shared":
            good = [m for m in modes if found.get(f"{m} uncapped", {}).get("outcome") == "ok"]
            for m in good:
                cap = high_enough(found[f"{m} uncapped"], on_card)
                # As in the first trial of a mode: the limit is the cap and what is assumed to lie outside.
                go([(f"{m} lives", m, cap, cap + ASSUMED_OUTSIDE_BYTES if on_card else cap)], 1, True)
    save()
    for mode, sentence in judge(found, on_card).items():
        print(f"{mode}: {sentence}", flush=True)


if __name__ == "__main__":
    main()
