"""All that needs a card but the pairs, in order and within a time: one JSON file for each.

    python tests/gpu/all.py -o OUT --seconds 560
    python tests/gpu/all.py -o /tmp/out --seconds 900 --device cpu --tiny

First what may run beside others, as it judges by the allocator and by numbers; then what wants the card
for itself. A script that fails or runs too long ends alone. Their logs are put together in ``all.log``;
what was found is printed once more at the very end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
LOGS = Path(tempfile.mkdtemp(prefix="all-"))


@dataclass(frozen=True)
class Script:
    """One call of a script."""

    name: str
    words: tuple[str, ...]
    seconds: float
    """It is told to end by then, and killed some time later."""


TOGETHER = (
    Script("dropout", ("--at-once", "3"), 200),
    Script("cap", ("--stage", "shared"), 200),
    Script("field_reports", ("--at-once", "4", "--only", "d1,d2,d3,d7"), 230),
)
ALONE = (
    Script("cap", ("--stage", "alone"), 125),
    Script("detectors", ("--at-once", "3"), 140),
    Script("field_reports_d18", ("--only", "d18"), 25),
)
GRACE_S = 25.0


@dataclass
class Running:
    """A script that runs."""

    script: Script
    process: subprocess.Popen[bytes]
    began: float


def start(script: Script, args: argparse.Namespace, seconds: float) -> Running:
    """Start a script; what it says goes into a log of its own."""
    file = script.name.removesuffix("_d18")
    command = [sys.executable, str(HERE / f"{file}.py"), "-o", str(args.output / f"{script.name}.json")]
    command += [*script.words, "--seconds", f"{seconds:.0f}", "--device", args.device]
    command += ["--tiny"] if args.tiny else []
    if args.device == "cpu":
        # Two cores: one thing at a time.
        command += ["--at-once", "1", *([] if file == "cap" else ["--each", "400"])]
    with (LOGS / f"{script.name}{'-'.join(script.words)}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    print(f"{script.name}: started, {seconds:.0f} s", flush=True)
    return Running(script, process, time.monotonic())


def wait(running: list[Running], ends: float) -> None:
    """Wait for all of them; kill what is still there at `ends`."""
    for one in running:
        try:
            code = one.process.wait(max(0.1, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            code = None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.wait()
        took = time.monotonic() - one.began
        print(f"{one.script.name}: {'killed' if code is None else f'exit {code}'} after {took:.0f} s", flush=True)


def show(args: argparse.Namespace, script: Script) -> None:
    """Print the end of a script's log, and keep all of it."""
    text = (LOGS / f"{script.name}{'-'.join(script.words)}.log").read_text(errors="replace")
    with (args.output / "all.log").open("a") as log:
        log.write(f"=== {script.name} {' '.join(script.words)}\n{text}\n")
    noise = re.compile(r"  warnings\.warn|.*Warning:|[VWI]\d{4} |USDT:|AUTOTUNE|  triton_|  \w*mm ")
    told = [line[:300] for line in text.splitlines() if not noise.match(line)]
    print(f"--- {script.name}", *told[-12:], sep="\n", flush=True)


def summary(output: Path) -> list[str]:
    """Return what was found, a line each."""
    lines = []
    for name in ("dropout", "cap", "field_reports", "field_reports_d18", "detectors"):
        path = output / f"{name}.json"
        if not path.exists():
            lines.append(f"{name}: nothing")
            continue
        found = json.loads(path.read_text())
        if name == "dropout":
            found = {"said": {case: _dropout_words(row) for case, row in found.items()}}
        said = found.get("said") or {}
        lines += [f"{name}: {key}: {sentence}" for key, sentence in said.items()]
        lines += found.get("table", [])
        if name == "field_reports_d18":
            row = found.get("cases", {}).get("d18", {})
            lines.append(f"d18: {json.dumps({k: v for k, v in row.items() if k != 'tail'})}")
    return lines


def _dropout_words(row: dict[str, object]) -> str:
    if "error" in row:
        return str(row["error"])[:200]
    right = "as expected" if row["as_expected"] else "NOT AS EXPECTED"
    return f"{right}: vector {row['vector_difference']:.2%}, {row['fault'] or 'no fault'} ({row['twin_seconds']:.1f} s)"


def main() -> None:
    """Run all of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=560)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    groups = [list(TOGETHER), *([script] for script in ALONE)]
    if args.device == "cpu":
        groups = [[script] for group in groups for script in group]
    for number, group in enumerate(groups):
        left = args.seconds - (time.monotonic() - began) - GRACE_S
        if left < 20:
            print(f"left out, no time left: {', '.join(s.name for s in group)}", flush=True)
            continue
        # What is still to come keeps its share of the time.
        to_come = sum(max(s.seconds for s in later) for later in groups[number + 1 :])
        given = {s.name: min(s.seconds * (3 if args.device == "cpu" else 1), max(left - to_come, 40)) for s in group}
        running = [start(script, args, min(left, given[script.name])) for script in group]
        wait(running, min(time.monotonic() + max(given.values()) + GRACE_S, began + args.seconds))
        for script in group:
            show(args, script)
    print("=== what was found", *summary(args.output), sep="\n", flush=True)
    print(f"in all {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
