"""`tuner run` beside three runs of the bare script, for strategies of the 1B shape, in one call.

    python tests/gpu/pairs.py -o OUT/pairs.json --seconds 480
    python tests/gpu/pairs.py -o /tmp/pairs.json --device cpu --tiny --seconds 400 --only 1b-lora-eager

The order alternates from strategy to strategy. Every bare run is a process of its own; it is started
early, imports its libraries while `tuner run` starts its worker, and then sleeps in a read until its
turn comes: before that it touches no card. `tuner run` is called in this process (its worker is a
fresh one each time), which saves its imports.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.gpu import plans
from tests.gpu.compare import BARE, bare_arguments
from tuner import nvml
from tuner.cli import main as tuner

KEPT = (
    "outcome", "kind", "flags", "detail", "tokens_per_s", "peak_allocated_bytes", "peak_reserved_bytes",
    "peak_device_bytes", "limit_bytes", "cap_bytes", "compile_seconds", "seconds",
)  # fmt: skip
NEAR_SPEED, NEAR_MEMORY = 0.03, 0.01
BARE_SECONDS = 150.0
DEADLINES = ("start=120", "load=60", "first_step=120", "settle=90", "steady=90")


class Bare:
    """A bare script that imports and waits."""

    def __init__(self, plan: dict[str, Any], cache: Path, seconds: float) -> None:
        ours = str(Path(__file__).parents[2])
        path = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and os.path.abspath(p) != ours]
        # bitsandbytes is beside our own code on the path, and only its optimizer needs it: its import touches the card.
        path = path if plan["strategy"]["optimizer"] != "adamw" else []
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(path),
            "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
            "TRITON_CACHE_DIR": str(cache / "triton"),
            "HF_HUB_OFFLINE": "1",
        }
        command = [sys.executable, str(BARE), *bare_arguments(plan), "--wait", "--seconds", str(seconds)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment, start_new_session=True
        )

    def run(self) -> dict[str, Any]:
        """Let it measure."""
        began = time.time()
        try:
            out, err = self.process.communicate("go\n", timeout=BARE_SECONDS)
        except subprocess.TimeoutExpired:
            self.stop()
            return {"tokens_per_s": None, "detail": f"longer than {BARE_SECONDS:.0f} s"}
        if self.process.returncode:
            return {"tokens_per_s": None, "detail": err[-600:]}
        found = json.loads(out.strip().splitlines()[-1])
        found.pop("arguments")
        return found | {"seconds": time.time() - began}

    def stop(self) -> None:
        """End it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)
        self.process.wait()


def run_tuner(path: Path, storage: str, device: str) -> dict[str, Any]:
    """Call `tuner run` and return what it says in JSON; on a card no phase may take all the time there is."""
    deadlines = [word for pair in DEADLINES if device == "cuda" for word in ("--deadline", pair)]
    said, began = io.StringIO(), time.time()
    try:
        with contextlib.redirect_stdout(said):
            code = tuner(["run", str(path), "--json", "--storage", storage, *deadlines])
    except SystemExit as error:
        code = int(error.code or 0)
    lines = [json.loads(line) for line in said.getvalue().splitlines() if line.startswith("{")]
    records = [line for line in lines if "fingerprint" in line]
    wall = time.time() - began
    if not records:
        return {"exit": code, "tokens_per_s": None, "detail": said.getvalue()[-600:], "wall_seconds": wall}
    return {"exit": code, "wall_seconds": wall} | {name: records[-1].get(name) for name in KEPT}


def judge(of_tuner: dict[str, Any], bare: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how the two differ, and whether that is within what the issue allows."""
    good = [run for run in bare if run.get("tokens_per_s")]
    if not of_tuner.get("tokens_per_s") or not good:
        return {"verdict": "no pair"}
    speeds = [run["tokens_per_s"] for run in good]
    mean = statistics.mean(speeds)
    spread = (max(speeds) - min(speeds)) / mean
    speed = of_tuner["tokens_per_s"] / mean - 1
    found: dict[str, Any] = {"bare_tokens_per_s": mean, "bare_spread": spread, "speed_difference": speed}
    found["speed_agrees"] = abs(speed) <= max(NEAR_SPEED, spread)
    reserved = [run["peak_reserved_bytes"] for run in good if run["peak_reserved_bytes"]]
    if reserved and of_tuner["peak_reserved_bytes"]:
        # `tuner run` compiled with an empty cache, and so did the first bare run alone.
        found["reserved_difference"] = of_tuner["peak_reserved_bytes"] / reserved[0] - 1
        found["bare_reserved_bytes"] = reserved
        found["reserved_agrees"] = abs(found["reserved_difference"]) <= NEAR_MEMORY
    agrees = found["speed_agrees"] and found.get("reserved_agrees", True)
    return found | {"verdict": "agrees" if agrees else "differs", "bare_runs": len(good)}


def sentence(name: str, row: dict[str, Any]) -> str:
    """Return one line for a person."""
    found = row["judged"]
    if found["verdict"] == "no pair":
        return f"{name}: no pair ({row['tuner'].get('detail')}; {[b.get('detail') for b in row['bare']]})"
    memory = f", reserved {found['reserved_difference']:+.2%}" if "reserved_difference" in found else ""
    return (
        f"{name}: {found['verdict']}: tuner {row['tuner']['tokens_per_s']:,.0f} tokens/s, bare "
        f"{found['bare_tokens_per_s']:,.0f} in {found['bare_runs']} runs ({found['speed_difference']:+.1%}, bare "
        f"spread {found['bare_spread']:.1%}){memory}"
    )


class Pairs:
    """Runs the pairs within the time, and keeps what came out after each."""

    def __init__(self, args: argparse.Namespace, folder: Path, cases: list[plans.Case]) -> None:
        self.args, self.folder, self.cases = args, folder, cases
        self.ends = time.time() + args.seconds
        self.storage = f"sqlite:///{folder}/studies/tuner.db"
        (folder / "studies").mkdir()
        on = machine(args.device)
        self.paths = {case.name: plans.write(case, on, folder, args.tiny) for case in cases}
        self.read = {case.name: plans.plan(case, on, args.tiny).model_dump(mode="json") for case in cases}
        self.rows: dict[str, Any] = {}
        self.waiting: dict[str, list[Bare]] = {}

    def start_bare(self, names: list[str]) -> None:
        """Start the bare scripts of `names`, where they are not started yet."""
        for name in names:
            if name not in self.waiting:
                cache = self.folder / "bare-cache" / name
                self.waiting[name] = [Bare(self.read[name], cache, self.args.steady) for _ in range(self.args.bare)]

    def run(self) -> None:
        """Go through the pairs; one that does not fit into the time any more is left out."""
        for number, case in enumerate(self.cases):
            if time.time() + case.expected_seconds * self.args.scale > self.ends:
                print(f"{case.name}: left out, no time left", flush=True)
                continue
            following = [c.name for c in self.cases[number + 1 : number + 2]]
            self.rows[case.name] = self.pair(case, following, tuner_first=number % 2 == 0)
            print(sentence(case.name, self.rows[case.name]), flush=True)
            self.args.output.write_text(json.dumps(self.rows, indent=1))
        print("=== what was found", *(sentence(name, row) for name, row in self.rows.items()), sep="\n", flush=True)
        for bare in (b for some in self.waiting.values() for b in some):
            bare.stop()

    def pair(self, case: plans.Case, following: list[str], tuner_first: bool) -> dict[str, Any]:
        """Measure one strategy with both programs."""
        began = time.time()
        row: dict[str, Any] = {"plan": self.read[case.name], "tuner_first": tuner_first, "bare": []}
        for who in ("tuner", "bare") if tuner_first else ("bare", "tuner"):
            if who == "tuner":
                # While the worker imports, so do the bare scripts of this pair and, where they go first, of the next.
                self.start_bare([case.name, *(following if tuner_first else [])])
                row["tuner"] = run_tuner(self.paths[case.name], self.storage, self.args.device)
                print(f"  {case.name} tuner: {json.dumps(row['tuner'])}", flush=True)
                continue
            self.start_bare([case.name])
            for bare in self.waiting.pop(case.name):
                row["bare"].append(bare.run())
                print(f"  {case.name} bare: {json.dumps(row['bare'][-1])[:250]}", flush=True)
            self.waiting[case.name] = []
        return row | {"judged": judge(row["tuner"], row["bare"]), "wall_seconds": time.time() - began}


def machine(device: str) -> Any:
    """Return what the plans say of this machine. CUDA's total is a little less; under 24 GiB nothing depends on it."""
    if device == "cpu":
        return plans.environment("cpu", 8 * plans.GIB, "a processor")
    card = nvml.list_cards()[0]
    return plans.environment("cuda", card.total_bytes, card.name)


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--bare", type=int, default=3, help="runs of the bare script for each strategy")
    parser.add_argument("--steady", type=float, default=3.0, help="seconds that a bare run is timed for, at least")
    parser.add_argument("--only", help="names with commas between")
    parser.add_argument("--scale", type=float, default=1.0, help="of the expected seconds")
    args = parser.parse_args()
    wanted = args.only.split(",") if args.only else [case.name for case in plans.CASES]
    cases = [case for case in plans.CASES if case.name in wanted]
    for case in cases:
        print(f"plan: {case.name}, about {case.expected_seconds * args.scale:.0f} s", flush=True)
    expected = (sum(c.expected_seconds for c in cases) + plans.CHECK_SECONDS) * args.scale
    print(f"in all about {expected:.0f} of {args.seconds:.0f} s", flush=True)
    with tempfile.TemporaryDirectory(prefix="pairs-") as folder:
        Pairs(args, Path(folder), cases).run()


if __name__ == "__main__":
    main()
