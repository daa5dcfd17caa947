"""`tuner run` and the bare script in turn, on two exported strategies: do the ratios agree?

    python tests/gpu/compare.py best.yaml checkpointing.yaml -o comparison.json

Needs a card. The order alternates both between the two programs and between the two plans.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import yaml

BARE = Path(__file__).with_name("bare.py")


def bare_arguments(plan: dict) -> list[str]:
    """Return the bare script's arguments for a plan; raises where it has no such option."""
    s, workload = plan["strategy"], plan["workload"]
    if s["optimizer"] != "adamw" or s["scope"] not in ("whole", "layer") or s["warmup_fraction"] != 1.0:
        raise SystemExit(f"bare.py cannot do {s}")
    words = [
        "--mode", s["mode"], "--checkpointing", s["checkpointing"], "--micro-batch", str(s["micro_batch"]),
        "--activation-memory-budget", str(s["activation_memory_budget"]), "--batch-size", str(workload["batch_size"]),
        "--seq-len", str(workload["lengths"]["max"]), "--device", plan["environment"]["device_type"],
        "--hidden", str(workload["config"]["hidden_size"]), "--layers", str(workload["config"]["num_hidden_layers"]),
    ]  # fmt: skip
    words += ["--cap-bytes", str(plan["cap_bytes"])] if plan["cap_bytes"] else []
    words += ["--scope", s["scope"]] if s["mode"] != "off" else []
    words += ["--expandable-segments"] if s["expandable_segments"] else []
    return words + (["--dynamic"] if s["dynamic"] == "true" else [])


def run_bare(plan: dict) -> dict:
    """Run the bare script once."""
    done = subprocess.run([sys.executable, BARE, *bare_arguments(plan)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return {"who": "bare", "tokens_per_s": found["tokens_per_s"], "peak_reserved_bytes": found["peak_reserved_bytes"],
            "step_seconds": found["step_seconds"]}  # fmt: skip


def run_tuner(path: str) -> dict:
    """Run `tuner run` once."""
    command = [sys.executable, "-m", "tuner", "run", path, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 5):
        raise SystemExit(done.stdout[-2000:] + done.stderr[-3000:])
    record = next(r for r in map(json.loads, reversed(done.stdout.strip().splitlines())) if "fingerprint" in r)
    kept = ("outcome", "tokens_per_s", "peak_reserved_bytes", "peak_device_bytes", "limit_bytes")
    return {"who": "tuner", "exit": done.returncode} | {name: record[name] for name in kept}


def main() -> None:
    """Alternate and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("best")
    parser.add_argument("other")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=540)
    args = parser.parse_args()
    started = time.time()
    plans = {path: yaml.safe_load(Path(path).read_text()) for path in (args.best, args.other)}
    pairs = [(args.best, "tuner"), (args.best, "bare"), (args.other, "bare"), (args.other, "tuner")]
    rows = []
    for path, who in [*pairs, *((path, who) for path, who in reversed(pairs))]:
        if time.time() - started > args.seconds:
            break
        row = {"plan": path} | (run_tuner(path) if who == "tuner" else run_bare(plans[path]))
        rows.append(row)
        print(json.dumps(row), flush=True)
        args.output.write_text(json.dumps(rows, indent=1))
    for who in ("tuner", "bare"):
        speeds = {p: [r["tokens_per_s"] for r in rows if r["plan"] == p and r["who"] == who] for p in plans}
        means = {p: sum(v) / len(v) for p, v in speeds.items() if v}
        if len(means) == 2:
            print(f"{who}: best / other = {means[args.best] / means[args.other]:.3f}   {speeds}")


if __name__ == "__main__":
    main()
