"""The field reports that need a card: D1, D2, D3, D7, D18. The product's own trial, in forked processes.

    python tests/gpu/field_reports.py -o OUT/field_reports.json --seconds 300
    python tests/gpu/field_reports.py -o /tmp/reports.json --device cpu --tiny --at-once 1 --only d7

Each report says in one line what was found and whether it is what the product should say; nothing is
asserted by an exit code.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.gpu import forked
from tuner.units import GIB, format_gib

LENGTHS = 28
"""Distinct ones, in D2."""
COMPILES: dict[str, dict[str, Any]] = {
    "off": {},
    "layer": {"mode": "default", "scope": "layer"},
    "whole": {"mode": "default", "scope": "whole"},
}


class Reports:
    """The cases, and what they come to together."""

    def __init__(self, device: str, tiny: bool) -> None:
        self.device, self.tiny = device, tiny

    def cases(self) -> dict[str, forked.Case]:
        """Return all cases by name, the longest first."""
        found: dict[str, forked.Case] = {"d3 autotune": self.d3}
        for name in ("whole", "layer", "off"):
            for checkpointing in ("every-block", "off"):
                found[f"d1 {name}, checkpointing {checkpointing}"] = self._d1(COMPILES[name], checkpointing)
        return found | {
            "d2 varying": lambda: self.d2(True),
            "d2 fixed": lambda: self.d2(False),
            "d7 state": self.d7,
        }

    def _precision(self) -> Any:
        from tuner.workload import Precision

        return Precision.FP32_TRUE if self.tiny else Precision.BF16_TRUE

    def _lengths(self, tokens: int) -> Any:
        from tuner.workload import Lengths

        return Lengths.fixed(16 if self.tiny else tokens)

    # D1: compile beside checkpointing

    def _d1(self, compile_as: dict[str, Any], checkpointing: str) -> forked.Case:
        def case() -> Any:
            from tests.gpu import inside

            workload = inside.users(
                "stack", loss="square_loss", batch_fn="rows", batch_size=8, lengths=self._lengths(2048),
                precision=self._precision(),
            )  # fmt: skip
            strategy = compile_as | {"checkpointing": checkpointing}
            ran = inside.run(inside.request(workload, self.device, strategy))
            return ran.told() | {"peak_bytes": ran.peak(), "attempt": ran.attempt.model_dump(mode="json")}

        return case

    # D2: a graph for each length

    def d2(self, vary: bool) -> Any:
        """Run graphs over many lengths, then on for 40 steps, looking at graphs and memory after each."""
        import torch

        from tests.gpu import inside
        from tuner.worker import data
        from tuner.workload import Adapter, Lengths

        step = 2 if self.tiny else 35
        values = tuple(16 + step * n for n in range(1, LENGTHS + 1))
        lengths = Lengths(kind="list", max=values[-1], values=values) if vary else Lengths.fixed(values[-1])
        workload = inside.shaped(
            "llama-7b", self.tiny, layers=4, tokens=values[-1], adapter=Adapter.FULL, precision=self._precision(),
            lengths=lengths, batch_size=1,
        )  # fmt: skip
        if not self.tiny:
            small = {"hidden_size": 512, "intermediate_size": 1376, "num_attention_heads": 8, "num_key_value_heads": 8}
            workload = workload.model_copy(update={"config": (workload.config or {}) | small})
        if vary:
            _all_lengths(data, values)
        dynamic = {"dynamic": "auto"} if vary else {}
        ran = inside.run(inside.request(workload, self.device, inside.GRAPHS | dynamic))
        steps, health, rows = ran.trial.steps, ran.trial.m.health, []
        assert health is not None
        steps.batches.distinct = LENGTHS  # from here on as training would go on
        for number in range(40):
            batch = steps.batches.step(number)
            _, seconds = steps.timed(batch)
            on_card = self.device == "cuda"
            rows.append(
                {
                    "positions": batch.positions,
                    "seconds": seconds,
                    "graphs": health.recorded_graphs(),
                    "allocated_bytes": torch.cuda.memory_allocated() if on_card else None,
                    "reserved_bytes": torch.cuda.memory_reserved() if on_card else None,
                }
            )
        return ran.told() | {"steps_behind": rows, "graphs": health.recorded_graphs()}

    # D3: a peak of autotuning

    def d3(self) -> Any:
        """Autotune one product of a large vocabulary, and see in which phase the peak lies."""
        from tests.gpu import inside
        from tuner.outcome import classify

        workload = inside.users(
            "head", loss="target_loss", batch_fn="head_rows", batch_size=1, lengths=self._lengths(2048),
            precision=self._precision(),
        )  # fmt: skip
        strategy = {"mode": "max-autotune-no-cudagraphs", "scope": "whole"}
        ran = inside.run(inside.request(workload, self.device, strategy))
        told = ran.told()
        peaks = ran.peaks("reserved_bytes" if self.device == "cuda" else "device_bytes")
        steady, first = peaks.get("steady") or 0, peaks.get("first_step") or 0
        limit = (steady + first) // 2
        asked = ran.attempt.request.model_copy(update={"limit_bytes": limit})
        verdict = classify(_seen_by_the_allocator(ran.attempt).model_copy(update={"request": asked}))
        return told | {
            "first_step_bytes": first,
            "steady_bytes": steady,
            "limit_between_bytes": limit,
            "outcome_under_that_limit": str(verdict.outcome),
            "detail_under_that_limit": verdict.detail,
            "phase_under_that_limit": verdict.phase,
        }

    # D7: bytes of optimizer state

    def d7(self) -> Any:
        """Run each optimizer on small tensors, on large ones and under LoRA; return the bytes of their states."""
        from tests.gpu import inside

        shared = {"loss": "square_loss", "batch_size": 2, "lengths": self._lengths(64), "precision": self._precision()}
        workloads = {
            "small tensors": inside.users("small_tensors", batch_fn="narrow_rows", **shared),
            "large tensors": inside.users("large_tensors", batch_fn="wide_rows", **shared),
            "LoRA": inside.shaped("llama-7b", self.tiny, layers=2, tokens=256),
        }
        found: dict[str, Any] = {}
        for name, workload in workloads.items():
            row: dict[str, Any] = {}
            for optimizer in ("adamw", "adamw-8bit"):
                ran = inside.run(inside.request(workload, self.device, {"optimizer": optimizer}))
                row[optimizer] = {
                    "state_bytes": ran.result.optimizer_state_bytes,
                    "outcome": str(ran.verdict().outcome),
                    "detail": ran.verdict().detail,
                    "flags": list(ran.result.flags),
                    "notes": list(ran.result.notes),
                    "trainable_share": _share(ran.result),
                    "peak_bytes": ran.peak(),
                }
            plain, packed = (row[o]["state_bytes"] or 0 for o in ("adamw", "adamw-8bit"))
            found[name] = row | {"share_of_state": packed / plain if plain else None}
        return found


def _all_lengths(data: Any, lengths: tuple[int, ...]) -> None:
    """Let a workload have each of `lengths` once before any comes again, in a random order that is always the same."""
    original, mixed = data.Batches.__init__, random.Random(0).sample(lengths, len(lengths))

    def init(self: Any, *args: Any, **named: Any) -> None:
        original(self, *args, **named)
        self.distinct = min(self.distinct, len(mixed))  # the product's own number: the others are not met

    data.Batches.__init__ = init
    data.Batches._make = lambda self, index: self._cut([mixed[index % len(mixed)]], index, self.micro_batch)


def _seen_by_the_allocator(attempt: Any) -> Any:
    """The attempt with what the allocator reserved in place of the device's figures, which others share here."""
    phases = attempt.result.phases if attempt.result else ()
    peaks = {record.phase: record.reserved_bytes for record in phases if record.reserved_bytes}
    return attempt.model_copy(update={"device_peaks": peaks}) if peaks else attempt


def _share(result: Any) -> float | None:
    return result.trainable_parameters / result.parameters if result.parameters else None


# What the cases come to


def conclude(found: dict[str, Any]) -> dict[str, str]:
    """Return one sentence for each report."""
    said: dict[str, str] = {}
    for name, of in (("d1", _say_d1), ("d2", _say_d2), ("d3", _say_d3), ("d7", _say_d7)):
        mine = {key: value for key, value in found.items() if key.split()[0] == name}
        broken = {key: value["error"] for key, value in mine.items() if "error" in value}
        good = {key: value for key, value in mine.items() if key not in broken}
        parts = ([of(good)] if good else []) + ([f"incomplete: {broken}"] if broken else [])
        if parts:
            said[name] = "; ".join(parts)
    return said


def _say_d1(found: dict[str, Any]) -> str:
    from tuner.outcome import classify
    from tuner.protocol import Attempt

    peaks = {name.removeprefix("d1 "): row["peak_bytes"] for name, row in found.items()}
    limit = (min(peaks.values()) + max(peaks.values())) // 2
    fits = []
    for name, row in found.items():
        attempt = _seen_by_the_allocator(Attempt.model_validate(row["attempt"]))
        asked = attempt.request.model_copy(update={"limit_bytes": limit})
        if str(classify(attempt.model_copy(update={"request": asked})).outcome) == "ok":
            fits.append(name.removeprefix("d1 "))
    ratios = []
    for name, peak in peaks.items():
        twin = peaks.get("off, " + name.partition(", ")[2])
        if twin and not name.startswith("off"):
            more = " (MORE than eager)" if peak > 1.01 * twin else ""
            ratios.append(f"{name} {peak / twin:.2f} of its eager twin{more}")
    sizes = ", ".join(f"{name} {format_gib(peak)}" for name, peak in peaks.items())
    return f"peaks: {sizes}; {'; '.join(ratios)}; under {format_gib(limit)} these fit: {', '.join(fits)}"


def _say_d2(found: dict[str, Any]) -> str:
    said = []
    for name, row in found.items():
        behind = row["steps_behind"]
        lengths = len({r["positions"] for r in behind})
        rise = (behind[-1]["reserved_bytes"] or 0) - (behind[0]["reserved_bytes"] or 0)
        said.append(
            f"{name.removeprefix('d2 ')}: {row['outcome']} ({row['detail'] or 'no detail'}), {row['graphs']} graphs in "
            f"all for {lengths} lengths, reserved rose by {rise / 2**20:.0f} MiB over 40 steps more"
        )
    return "; ".join(said)


def _say_d3(found: dict[str, Any]) -> str:
    row = next(iter(found.values()))
    first, steady, between = (format_gib(row[f"{n}_bytes"]) for n in ("first_step", "steady", "limit_between"))
    return (
        f"{row['outcome']}; first step {first}, steady {steady}, {row['peak']}; under {between}: "
        f"{row['outcome_under_that_limit']} in {row['phase_under_that_limit']}"
    )


def _say_d7(found: dict[str, Any]) -> str:
    row = next(iter(found.values()))
    parts = []
    for name in ("small tensors", "large tensors", "LoRA"):
        packed = row[name]["adamw-8bit"]
        flagged = "flagged no_effect" if "no_effect" in packed["flags"] else "not flagged"
        parts.append(f"{name}: 8-bit state is {row[name]['share_of_state'] or 0:.2f} of the plain one, {flagged}")
    return "; ".join(parts)


# D18: the memory of a killed worker and of its child


def d18(device: str) -> dict[str, Any]:
    """Let a worker and a child of its own session take memory and hang; kill it; is the card as before?"""
    from tests.tuner.trials import request
    from tuner import device as devices
    from tuner import nvml, processes
    from tuner.device import CardMeter
    from tuner.kinds import Phase
    from tuner.launcher import Launcher
    from tuner.outcome import classify
    from tuner.trial_dir import TrialDir

    uuid = nvml.list_cards()[0].uuid if device == "cuda" else None
    base = devices.read_base_line(uuid) if uuid else None
    folder = TrialDir.create(Path(tempfile.mkdtemp(prefix="d18-")), "study", "0")
    size = GIB if uuid else 0
    deadlines = {Phase.START: 60.0, Phase.SETTLE: 2.0}
    asked = request(device_type=device, device_uuid=uuid, deadlines=deadlines, limit_bytes=64 * GIB)
    command = [sys.executable, str(Path(__file__).with_name("hold.py")), str(folder.path), str(size)]
    meter = CardMeter(uuid, base) if uuid and base else None
    attempt = Launcher(os.environ).start(asked, folder, command, meter).wait(90)
    assert attempt is not None
    ended = time.monotonic()
    drift = devices.check_clean(uuid, base, 15) if uuid and base else None
    child = int((folder.path / "child").read_text())
    stat = processes.read_stat(child)
    verdict = classify(attempt)
    return {
        "outcome": str(verdict.outcome),
        "detail": verdict.detail,
        "strays": list(attempt.strays),
        "child_is_gone": stat is None or not stat.alive,
        "peak_device_bytes": verdict.peak_device_bytes,
        "expected_at_least_bytes": 2 * size,
        "clean": drift.clean if drift else None,
        "left_bytes": devices.used_bytes(uuid) - base.used_bytes if uuid and base else None,
        "clean_after_seconds": time.monotonic() - ended,
        "tail": attempt.tail[-500:],
    }


def main() -> None:
    """Run the cases."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--each", type=float, default=200, help="seconds that one case may take")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--only", help="beginnings of names with commas between; d18 wants the card for itself")
    args, _ = parser.parse_known_args()
    os.environ["GPU_TINY"] = str(int(args.tiny))
    forked.prepare(threads=1 if args.device == "cpu" else 3, compilers=2 if args.device == "cpu" else 8)
    wanted: Callable[[str], bool] = lambda name: not args.only or name.startswith(tuple(args.only.split(",")))  # noqa: E731
    cases = {name: case for name, case in Reports(args.device, args.tiny).cases().items() if wanted(name)}
    forked.serve(cases)
    found: dict[str, Any] = {}
    if wanted("d18"):
        found["d18"] = _d18(args.device)
        forked.keep(args.output, {"cases": found})
    if cases:
        forked.load()
        spawn = forked.how_to_start(args.device, __file__, sys.argv[1:])
        for name, came in forked.run_all(
            cases, at_once=args.at_once, seconds=forked.left_of(args.seconds), each=args.each, spawn=spawn
        ):
            found[name] = came
            said = came.get("error") or came.get("outcome", "done")
            print(f"{name}: {said} ({came.get('seconds', '?')} s)", flush=True)
            forked.keep(args.output, {"cases": found})
    together = conclude(found)
    for name, sentence in together.items():
        print(f"{name}: {sentence}", flush=True)
    forked.keep(args.output, {"said": together, "cases": found})


def _d18(device: str) -> dict[str, Any]:
    try:
        found = d18(device)
    except Exception as error:  # one report of several: the others still run
        found = {"error": f"{type(error).__name__}: {error}"}
    print(f"d18: {found}", flush=True)
    return found


if __name__ == "__main__":
    main()
