"""``tuner doctor``: can this machine do the work?"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from tuner.errors import MachineError, WrongInput

HELP = "check Python, compiler, torch, card, Triton, cache folder and disk, with one tiny compile"
_DEVICE = "cpu, cuda or cuda:N"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--device", help=f"{_DEVICE}; the first card unless said, the cpu where there is none")
    parser.add_argument("--storage", metavar="URL", help="the database beside which the compile cache lies")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print what was found; 4 where nothing can be compiled."""
    from tuner.check import check_cache, check_file, run_check
    from tuner.check_view import print_check

    studies = _studies(args.storage)
    # The child is given the whole environment, as a worker is; nothing of it is read here.
    result = run_check(_device(args.device), check_cache(studies), dict(os.environ), check_file(studies), fresh=True)
    if args.json:
        print(result.model_dump_json(indent=2))
    else:
        print_check(result)
    if not result.can_compile:
        raise MachineError(f"this machine cannot compile: {result.reason}")
    return 0


def _device(given: str | None) -> str:
    """Return ``cpu`` or ``cuda:N``."""
    from tuner.checklist import nvidia_driver

    if given is None:
        return "cuda:0" if nvidia_driver() else "cpu"
    kind, _, index = given.partition(":")
    if given == "cpu" or (kind == "cuda" and index.isdecimal()):
        return given
    if given == "cuda":
        return "cuda:0"
    raise WrongInput("device", f"is {_DEVICE}", given)


def _studies(url: str | None) -> Path:
    """Return the folder of the studies: beside the file of a SQLite URL, else ``studies`` here."""
    if url is None or not url.startswith("sqlite:///"):
        return Path.cwd() / "studies"
    return (Path.cwd() / url.removeprefix("sqlite:///")).parent
