"""The knobs on a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from strategies.knob import Knob
from strategies.spelling import spell
from tuner.progress import make_console


def print_knobs(knobs: Iterable[Knob], console: Console | None = None) -> None:
    """Print one row for each knob, in the order in which they are decided."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("knob", "values", "baseline", "stage", "what it is"):
        table.add_column(name, overflow="fold")
    for knob in knobs:
        table.add_row(*(Text(cell) for cell in cells(knob)))
    (console or make_console()).print(table)


def cells(knob: Knob) -> list[str]:
    """Name, values (the slow ones marked), baseline, stage and help."""
    values = ", ".join(spell(value) + ("*" if value in knob.slow else "") for value in knob.values)
    if type(knob).domain is not Knob.domain:
        values = "decided by the workload"
    slow = " (*: takes minutes to compile, joins with an hour or by --knob)" if knob.slow else ""
    return [knob.name, values + slow, spell(knob.baseline), knob.stage.name.lower(), knob.help]


def print_knob(knob: Knob, console: Console | None = None) -> None:
    """Print what each value of a knob does."""
    console = console or make_console()
    console.print(Text(f"{knob.name}: {knob.help}", style="bold"))
    for value in knob.values:
        baseline = " (baseline)" if value == knob.baseline else ""
        console.print(Text(f"  {spell(value)}{baseline}: {knob.explain(value)}"))
