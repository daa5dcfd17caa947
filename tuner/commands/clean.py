"""``tuner clean``: give disk space back."""

from __future__ import annotations

import argparse
from contextlib import closing

from tuner.commands.common import add_storage_option, open_records, pick_study, studies_folder
from tuner.errors import ExitCode

HELP = (
    "list compile caches, logs, trial folders and memory snapshots with their sizes; --yes removes them, never records"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_storage_option(parser)
    parser.add_argument("--study", metavar="NAME", help="what belongs to this study alone; all of them unless said")
    parser.add_argument("--yes", action="store_true", help="remove what is listed")


def run(args: argparse.Namespace) -> int:
    """List, and remove where asked; without --study of every study that is not running."""
    from tuner.clean import describe, find, remove

    storage, records = open_records(args)
    with closing(storage):
        chosen = [pick_study(records, args.study)] if args.study else [s.study for s in records.studies()]
        running = {study.name for study in chosen if records.lease_holder(study.name)}
        names = [study.name for study in chosen if study.name not in running]
        recorded = {record.uuid for name in names for record in records.for_study(name)}
        found = find(studies_folder(storage), names, shared=not args.study and not running, recorded=recorded)
    for line in describe(found, running, removed=args.yes):
        print(line)
    if args.yes:
        remove(found)
    return ExitCode.DONE
