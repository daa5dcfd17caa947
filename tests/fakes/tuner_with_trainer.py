"""The command line with `trainer.py` for its worker and without the check of the machine: ARGUMENTS."""

from __future__ import annotations

import functools
import pathlib
import sys
from collections.abc import Callable

from tuner import check, measuring
from tuner.cli import main
from tuner.executor import LocalExecutor
from tuner.machine import CheckItem, ChildFacts, ChildReport

TRAINER = [sys.executable, "-S", str(pathlib.Path(__file__).with_name("trainer.py"))]
HEALTHY = ChildReport(
    stage="done",
    items=(CheckItem(name="device", ok=True, value="a processor"),),
    facts=ChildFacts(),
    compile_seconds=1.0,
)


def fake(setattr: Callable[..., None] = setattr) -> None:
    """Put both in place. `setattr`: pytest's, to have it undone."""
    setattr(measuring, "LocalExecutor", functools.partial(LocalExecutor, command=TRAINER))
    setattr(check, "ask_child", lambda *_: HEALTHY)


if __name__ == "__main__":
    fake()
    sys.exit(main(sys.argv[1:]))
