"""A report on a terminal."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tuner.misses import NearestMiss
from tuner.outcome import Outcome
from tuner.report import Line, Report
from tuner.units import format_duration, format_gib
from tuner.wording import outcome_words

_STYLES = {Outcome.OK: "green", Outcome.OVER_BUDGET: "yellow", Outcome.OOM: "yellow"}


def print_report(report: Report, console: Console) -> None:
    """Print the report; every cell is data, so nothing in it is read as markup."""
    console.print(render(report))


def render(report: Report) -> Group:
    """Return the report, the answer first."""
    parts: list[RenderableType] = [Text(report.answer, style="bold"), Text(_subject(report), style="dim"), Text("")]
    lines = [line for line in (report.winner, *report.comparisons, *report.runners_up) if line]
    if lines:
        parts += [strategies(lines), Text("")]
    parts.append(Text(outcomes(report)))
    if report.causes:
        parts += [Text(""), causes(report)]
    if report.nearest_miss:
        parts += [Text(""), Text(miss(report.nearest_miss))]
    if report.would_have_to_give:
        parts += [Text("What would have to give:"), *(Text(f"  {line}") for line in report.would_have_to_give)]
    parts += [Text(flag, style="dim") for flag in report.flags]
    if report.next_command:
        parts += [Text(""), Text(f"Export it: {report.next_command}")]
    return Group(*parts)


def _subject(report: Report) -> str:
    return (
        f"study {report.study}: {report.workload}; on {report.device}, "
        f"budget {format_gib(report.budget_bytes)}, limit {format_gib(report.limit_bytes)}"
    )


def strategies(lines: list[Line]) -> Table:
    """The winner, what it is compared with, and the runners-up."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("what", overflow="fold")
    table.add_column("strategy", overflow="fold")
    for name in ("tokens/s", "winner is", "peak", "to spare", "compile"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("outcome", overflow="fold")
    for line in lines:
        table.add_row(
            *(Text(cell) for cell in _cells(line)), Text(_result(line), style=_STYLES.get(line.outcome, "red"))
        )
    return table


def _cells(line: Line) -> list[str]:
    return [
        ", ".join(line.labels),
        line.description,
        "" if line.tokens_per_s is None else f"{line.tokens_per_s:,.0f}",
        "" if line.winner_ratio is None else f"{line.winner_ratio:.2f} x",
        "" if line.peak_device_bytes is None else format_gib(line.peak_device_bytes),
        "" if line.headroom_bytes is None else format_gib(line.headroom_bytes),
        "" if line.compile_seconds is None else format_duration(line.compile_seconds),
    ]


def _result(line: Line) -> str:
    proof = ", proved" if line.role == "proof" and line.outcome is Outcome.OK else ""
    flags = f" [{', '.join(line.flags)}]" if line.flags else ""
    return line.cause + proof + flags


def outcomes(report: Report) -> str:
    """How many launches ended how."""
    counts = ", ".join(f"{count} {outcome_words(outcome)}" for outcome, count in report.outcomes.items())
    return f"{report.launches} launches: {counts}" if counts else "No launches yet."


def causes(report: Report) -> Table:
    """What went wrong, by cause and phase."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("times", justify="right")
    table.add_column("cause", overflow="fold")
    table.add_column("for example", overflow="fold")
    for cause in report.causes:
        table.add_row(Text(str(cause.count)), Text(cause.words), Text(cause.example))
    return table


def miss(nearest: NearestMiss) -> str:
    """The nearest miss in one sentence."""
    least = "at least " if nearest.at_least else ""
    return (
        f"Nearest miss: {nearest.description} needs {least}{format_gib(nearest.need_bytes)}, "
        f"{least}{format_gib(nearest.missed_by_bytes)} more than the limit."
    )
