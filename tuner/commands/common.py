"""What several commands share: the options of the storage, and opening it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.errors import WrongInput, nearest
from tuner.units import parse_count

if TYPE_CHECKING:
    from tuner.record import StudyRecord
    from tuner.records import Records
    from tuner.storage import Storage

NO_STUDY = "no study here yet: run tuner search first"


def add_storage_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--storage URL``."""
    parser.add_argument(
        "--storage", metavar="URL", help="database, as sqlite:///FILE or postgresql://…; studies/tuner.db unless said"
    )


def add_study_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--storage URL`` and ``--study NAME``."""
    add_storage_option(parser)
    parser.add_argument("--study", metavar="NAME", help="the study; the one that was searched last unless said")


TRAIN_STEPS = (
    "rank by the whole run of so many optimizer steps, cold compiling included: best, runners-up and what is proved. "
    "Neither the study nor what Optuna is told changes, and without it throughput alone counts again"
)


def add_train_steps_option(parser: argparse._ActionsContainer) -> None:
    """Add ``--train-steps N``."""
    parser.add_argument("--train-steps", metavar="N", help=TRAIN_STEPS)


def train_steps(args: argparse.Namespace) -> int | None:
    """Return the steps that were asked for; None: none were.

    Raises:
        WrongInput: not a whole number of 1 or more.
    """
    if args.train_steps is None:
        return None
    try:
        return parse_count(args.train_steps)
    except ValueError as error:
        raise WrongInput("train-steps", str(error), args.train_steps) from error


def open_records(args: argparse.Namespace) -> tuple[Storage, Records]:
    """Open the database that the options name; it is never made here.

    Raises:
        WrongInput: there is none yet, or it cannot be used.
        MachineError: it is locked, or its server cannot be reached.
    """
    from tuner.records import Records
    from tuner.storage import DEFAULT_FILE, open_storage

    if args.storage is None and not DEFAULT_FILE.exists():
        raise WrongInput("study", NO_STUDY)
    storage = open_storage(args.storage, Path.cwd(), create=False)
    return storage, Records(storage.engine, storage.retry)


def pick_study(records: Records, name: str | None) -> StudyRecord:
    """Return the study of that name, the one that was searched last where no name is given.

    Raises:
        WrongInput: there is none.
    """
    study = records.latest_study() if name is None else records.study(name)
    if study is not None:
        return study
    known = [summary.study.name for summary in records.studies()]
    if name is None or not known:
        raise WrongInput("study", NO_STUDY)
    raise WrongInput("study", "must be in this database", name, nearest(name, known) or "`tuner studies` lists them")


def studies_folder(storage: Storage) -> Path:
    """Return the folder in which studies keep their files: beside a SQLite file, else ``studies`` here."""
    from tuner.storage import DEFAULT_FILE

    return storage.path.parent if storage.path is not None else Path.cwd() / DEFAULT_FILE.parent
