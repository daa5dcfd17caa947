"""``tuner export``: the winner as a YAML file."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from pathlib import Path

from tuner.commands.common import (
    add_study_options,
    add_train_steps_option,
    open_records,
    pick_study,
    train_steps,
)
from tuner.errors import ExitCode

HELP = "write the winner, or one trial, as YAML for tuner run and for your training script"
STDOUT = "-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_study_options(parser)
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="where to write it; - for stdout")
    add_train_steps_option(parser)
    parser.add_argument("--trial", type=int, metavar="N", help="this trial of the study instead of the best one")


def run(args: argparse.Namespace) -> int:
    """Write the file; where there is no winner write none and end as the search did."""
    from tuner.export import choose, exported, to_yaml, write
    from tuner.report import summary

    steps = train_steps(args)
    storage, records = open_records(args)
    with closing(storage):
        study = pick_study(records, args.study)
        known = records.for_key(study.key)
    record = choose(study, known, args.trial, train_steps=steps)
    if record is None:
        report = summary(study, known, train_steps=steps)
        print(f"{report.answer} Nothing was exported.", file=sys.stderr)
        return report.exit_code
    text = to_yaml(exported(study, record, known), record)
    if args.output == STDOUT:
        print(text, end="")
        return ExitCode.DONE
    write(text, Path(args.output))
    print(f"{args.output} written. Measure it again: tuner run {args.output}")
    return ExitCode.DONE
