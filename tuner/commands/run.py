"""``tuner run``: measure one strategy, that of an exported file, again."""

from __future__ import annotations

import argparse
from pathlib import Path

from tuner.commands.common import add_storage_option

HELP = "measure the strategy of an exported file again, and print it beside what the file says"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("plan", metavar="FILE", type=Path, help="what `tuner export` wrote")
    parser.add_argument("--budget-gb", metavar="GIB", help="instead of the file's")
    parser.add_argument("--card", metavar="NAME", help="a card instead of the file's budget, as rtx4090")
    parser.add_argument("--device", metavar="D", help="cuda, cuda:N or cpu; what the file was measured on unless said")
    parser.add_argument(
        "--shared-card", action="store_true", default=None, help="accept that others compute on the card"
    )
    parser.add_argument(
        "--cold", action="store_true", default=None, help="compile with an empty cache, as a proof does"
    )
    parser.add_argument(
        "--deadline",
        action="append",
        metavar="PHASE=S",
        help="seconds that a phase may take; several times what the file says, unless given",
    )
    parser.add_argument(
        "--memory-snapshot",
        action="store_true",
        help="keep the allocator's snapshot of one step, for pytorch.org/memory_viz; its largest blocks are printed",
    )
    parser.add_argument("--json", action="store_true", help="the record as one JSON object on stdout")
    add_storage_option(parser)


def run(args: argparse.Namespace) -> int:
    """Run the strategy once and print it beside the file's figures."""
    from tuner.commands.workload_options import spec_flags
    from tuner.comparison import blocks_view, compare, compare_view
    from tuner.plan import load_plan
    from tuner.progress import listening, make_console
    from tuner.run_again import run_plan
    from tuner.spec import inherited_environment
    from tuner.stopping import stop_signals

    plan = load_plan(args.plan)
    flags = {name: value for name, value in spec_flags(args).items() if name not in ("plan", "memory_snapshot")}
    with stop_signals() as stopped, listening(args.json) as listener:
        record = run_plan(plan, flags, inherited_environment(), listener, stopped, args.memory_snapshot)
    result = compare(plan, record)
    if not args.json:  # the listener has written the record
        console = make_console()
        console.print(compare_view(plan, record, result))
        for line in blocks_view(record):
            console.print(line, highlight=False, markup=False)
    return int(result.exit_code)
