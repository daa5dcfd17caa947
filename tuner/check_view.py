"""The check of the machine on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tuner.machine import CheckResult
from tuner.progress import make_console
from tuner.units import format_gib


def print_check(result: CheckResult, console: Console | None = None) -> None:
    """Print one row for each thing that was looked at, and what the card has."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", "what", "found", "what to do"):
        table.add_column(name, overflow="fold")
    for item in result.items:
        mark = Text("ok", style="green") if item.ok else Text("no", style="red")
        table.add_row(mark, Text(item.name), Text(item.value), Text(item.advice))
    console = console or make_console()
    console.print(table)
    for line in card(result):
        console.print(Text(line))


def card(result: CheckResult) -> list[str]:
    """The card in one line, the versions in another."""
    facts = result.facts
    lines = []
    if facts.cuda_total_bytes is not None:
        lines.append(
            f"{facts.device_name}: {format_gib(facts.cuda_total_bytes)} as CUDA counts, "
            f"{facts.multiprocessors} multiprocessors, capability {facts.capability}, driver {facts.driver}"
        )
    return [*lines, ", ".join(f"{name} {version}" for name, version in facts.versions.items())]
