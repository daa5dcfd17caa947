"""``tuner studies``: what is in the database."""

from __future__ import annotations

import argparse
from contextlib import closing

from tuner.commands.common import add_storage_option, open_records
from tuner.errors import ExitCode

HELP = "list the studies of the database, the one that was searched last at the end"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_storage_option(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object a study")


def run(args: argparse.Namespace) -> int:
    """Print one row for each study."""
    from tuner.studies_view import listed, print_studies

    storage, records = open_records(args)
    with closing(storage):
        rows = listed(records)
    if args.json:
        for row in rows:
            print(row.model_dump_json())
    else:
        print_studies(rows)
    return ExitCode.DONE
