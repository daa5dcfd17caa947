"""``tuner report``: what a study found."""

from __future__ import annotations

import argparse
from contextlib import closing

from tuner.commands.common import (
    add_study_options,
    add_train_steps_option,
    open_records,
    pick_study,
    train_steps,
)
from tuner.errors import ExitCode

HELP = "show what a study found: the winner, what it is compared with, and what did not work"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_study_options(parser)
    add_train_steps_option(parser)
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the report."""
    from tuner.progress import make_console
    from tuner.report import summary
    from tuner.report_view import print_report

    steps = train_steps(args)
    storage, records = open_records(args)
    with closing(storage):
        study = pick_study(records, args.study)
        report = summary(study, records.for_key(study.key), train_steps=steps)
    if args.json:
        print(report.model_dump_json(indent=2))
    else:
        print_report(report, make_console())
    return ExitCode.DONE
