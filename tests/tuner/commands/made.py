"""A working directory with a database in it, and a command run as the command line runs it."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.tuner.made import study_of
from tuner.record import StudyRecord, TrialRecord
from tuner.records import Records
from tuner.storage import open_storage


def fill(folder: Path, records: Iterable[TrialRecord], studies: Iterable[StudyRecord] = ()) -> None:
    """Make ``studies/tuner.db`` below `folder`, with the study `s` unless others are given."""
    with closing(open_storage(None, folder)) as storage:
        ours = Records(storage.engine)
        for study in list(studies) or [study_of()]:
            ours.add_study(study)
        for record in records:
            ours.add(record)


def call(command: ModuleType, *arguments: str) -> int:
    """Parse the arguments with the command's own parser and run it."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    code: Any = command.run(parser.parse_args(arguments))
    return int(code)
