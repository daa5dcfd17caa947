"""``tuner doctor``: can this machine do the work?"""

from __future__ import annotations

import argparse
from pathlib import Path

from tuner.errors import MachineError

HELP = "check Python, compiler, torch, card, Triton, cache folder and disk, with one tiny compile"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--device", help="cpu, cuda or cuda:N; the first card unless said, the cpu where there is none")
    parser.add_argument("--storage", metavar="URL", help="the database beside which the compile cache lies")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print what was found; 4 where nothing can be compiled."""
    from tuner.check import check_cache, check_file, run_check
    from tuner.check_view import print_check
    from tuner.spec import inherited_environment

    studies = _studies(args.storage)
    device, environment = _as_search(args.device, inherited_environment())
    result = run_check(device, check_cache(studies), environment, check_file(studies), fresh=True)
    if args.json:
        print(result.model_dump_json(indent=2))
    else:
        print_check(result)
    if not result.can_compile:
        raise MachineError(f"this machine cannot compile: {result.reason}")
    return 0


def _as_search(given: str | None, environment: dict[str, str]) -> tuple[str, dict[str, str]]:
    """Return device and environment as a search checks them, so that it need not ask again."""
    from tuner.pick_device import pick_device

    try:
        found = pick_device(given, environment.get("CUDA_VISIBLE_DEVICES"))
    except MachineError:
        # No card can be seen: the table says what is missing.
        return "cuda:0", environment
    return "cpu" if found.type == "cpu" else "cuda:0", {**environment, "CUDA_VISIBLE_DEVICES": found.uuid or ""}


def _studies(url: str | None) -> Path:
    """Return the folder of the studies: beside the file of a SQLite URL, else ``studies`` here."""
    if url is None or not url.startswith("sqlite:///"):
        return Path.cwd() / "studies"
    return (Path.cwd() / url.removeprefix("sqlite:///")).parent
