"""`tuner run` and the bare script in turn, on exported strategies: do speed and memory agree?

    python tests/gpu/compare.py best.yaml checkpointing.yaml -o comparison.json

Needs a card. The order alternates between the two programs and between the plans. While one process
runs, the next bare script imports its libraries and waits: it touches the card only when its turn comes.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import yaml

BARE = Path(__file__).with_name("bare.py")
KEPT = ("outcome", "flags", "detail", "tokens_per_s", "peak_reserved_bytes", "peak_device_bytes", "limit_bytes")


def bare_arguments(plan: dict) -> list[str]:
    """Return the bare script's arguments for a plan; raises where it has no such option."""
    s, workload = plan["strategy"], plan["workload"]
    if s["scope"] not in ("whole", "layer") or s["warmup_fraction"] != 1.0:
        raise SystemExit(f"bare.py cannot do {s}")
    words = [
        "--shape", workload["model"], "--adapter", workload["adapter"], "--precision", workload["precision"],
        "--mode", s["mode"], "--checkpointing", s["checkpointing"], "--micro-batch", str(s["micro_batch"]),
        "--activation-memory-budget", str(s["activation_memory_budget"]), "--batch-size", str(workload["batch_size"]),
        "--seq-len", str(workload["lengths"]["max"]), "--device", plan["environment"]["device_type"],
        "--optimizer", s["optimizer"],
    ]  # fmt: skip
    words += ["--layers", str(workload["depth"])] if workload["depth"] else []
    words += ["--cap-bytes", str(plan["cap_bytes"])] if plan["cap_bytes"] else []
    words += ["--scope", s["scope"]] if s["mode"] != "off" else []
    words += ["--expandable-segments"] if s["expandable_segments"] else []
    return words + (["--dynamic"] if s["dynamic"] == "true" else [])


class Bare:
    """The bare script, started early: it imports, then waits for a line."""

    def __init__(self, plan: dict) -> None:
        # Without PYTHONPATH: nothing of ours, and no bitsandbytes, whose import touches the card.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [sys.executable, str(BARE), *bare_arguments(plan), "--wait"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)

    def run(self) -> dict:
        """Let it measure."""
        out, err = self.process.communicate("go\n")
        if self.process.returncode:
            return {"who": "bare", "tokens_per_s": None, "peak_reserved_bytes": None, "detail": err[-600:]}
        found = json.loads(out.strip().splitlines()[-1])
        return {"who": "bare"} | {n: found[n] for n in ("tokens_per_s", "peak_reserved_bytes", "step_seconds", "steps")}


def run_tuner(path: str) -> dict:
    """Run `tuner run` once."""
    command = [sys.executable, "-m", "tuner", "run", path, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    records = [r for r in map(json.loads, done.stdout.strip().splitlines()) if "fingerprint" in r]
    if done.returncode not in (0, 5) or not records:
        raise SystemExit(done.stdout[-2000:] + done.stderr[-3000:])
    return {"who": "tuner", "exit": done.returncode} | {name: records[-1][name] for name in KEPT}


def order(plans: list[str], tuner: int, bare: int) -> list[tuple[str, str]]:
    """Return plan and program of each run."""
    turns = []
    for number in range(max(tuner, bare)):
        for index, path in enumerate(plans if number % 2 == 0 else reversed(plans)):
            pair = ["tuner"] * (number < tuner) + ["bare"] * (number < bare)
            turns += [(path, who) for who in (pair if (number + index) % 2 == 0 else reversed(pair))]
    return turns


def summary(plans: list[str], rows: list[dict]) -> None:
    """Print one line for each plan, and the ratio of the first two as each program sees it."""
    means: dict[tuple[str, str], float] = {}
    for path in plans:
        of = {
            w: [r for r in rows if r["plan"] == path and r["who"] == w and r["tokens_per_s"]] for w in ("tuner", "bare")
        }
        if not all(of.values()):
            print(f"{path}: no pair")
            continue
        speeds = {who: [r["tokens_per_s"] for r in found] for who, found in of.items()}
        reserved = {who: max(r["peak_reserved_bytes"] or 0 for r in found) for who, found in of.items()}
        for who, found in speeds.items():
            means[path, who] = statistics.mean(found)
        spread = (max(speeds["bare"]) - min(speeds["bare"])) / means[path, "bare"]
        speed = means[path, "tuner"] / means[path, "bare"] - 1
        memory = reserved["tuner"] / reserved["bare"] - 1 if reserved["bare"] else 0.0
        print(
            f"{path}: tuner {means[path, 'tuner']:,.0f} tokens/s, bare {means[path, 'bare']:,.0f} ({speed:+.1%}; "
            f"bare spread {spread:.1%}); reserved {reserved['tuner']:,} and {reserved['bare']:,} ({memory:+.2%})"
        )
    for one, other in itertools.combinations(plans[:2], 2):
        for who in ("tuner", "bare"):
            if (one, who) in means and (other, who) in means:
                print(f"{who}: {one} / {other} = {means[one, who] / means[other, who]:.3f}")


def main() -> None:
    """Alternate and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("plans", nargs="+")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--tuner", type=int, default=2, help="runs of `tuner run` for each plan")
    parser.add_argument("--bare", type=int, default=3, help="runs of the bare script for each plan")
    parser.add_argument("--seconds", type=float, default=540)
    args = parser.parse_args()
    started = time.time()
    read = {path: yaml.safe_load(Path(path).read_text()) for path in args.plans}
    turns = order(args.plans, args.tuner, args.bare)
    rows: list[dict] = []
    waiting: Bare | None = None
    for number, (path, who) in enumerate(turns):
        if time.time() - started > args.seconds:
            print("stopped: no time left", flush=True)
            break
        now = (waiting or Bare(read[path])) if who == "bare" else None
        if now is not None:
            waiting = None
        if waiting is None:
            following = next((p for p, w in turns[number + 1 :] if w == "bare"), None)
            waiting = Bare(read[following]) if following else None
        began = time.time()
        row = {"plan": path} | (now.run() if now is not None else run_tuner(path)) | {"seconds": time.time() - began}
        rows.append(row)
        print(json.dumps({name: value for name, value in row.items() if name != "steps"}), flush=True)
        args.output.write_text(json.dumps(rows, indent=1))
    if waiting is not None:
        waiting.process.kill()
    summary(args.plans, rows)


if __name__ == "__main__":
    main()
