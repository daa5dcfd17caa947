"""A report on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tuner.kinds import Phase
from tuner.memory_table import PARTS, MemoryColumn, remarks
from tuner.misses import NearestMiss
from tuner.outcome import Outcome
from tuner.report import Report
from tuner.report_lines import Line
from tuner.speed_words import clock_words, pays_words
from tuner.units import GIB, MIB, format_gib
from tuner.wording import outcome_words

_STYLES = {Outcome.OK: "green", Outcome.OVER_BUDGET: "yellow", Outcome.OOM: "yellow"}


def print_report(report: Report, console: Console) -> None:
    """Print the report; every cell is data, so nothing in it is read as markup."""
    console.print(render(report))


def render(report: Report) -> Group:
    """Return the report, the answer first."""
    parts: list[RenderableType] = [Text(report.answer, style="bold"), Text(_subject(report), style="dim"), Text("")]
    lines = [line for line in (report.winner, *report.comparisons, *report.runners_up) if line]
    parts += [strategy(line) for line in merged(lines)]
    parts += [Text(note) for note in report.notes]
    if lines:
        parts.append(Text(""))
    if report.memory:
        said = [words for column in report.memory for words in remarks(column)]
        parts += [memory(report.memory), *(Text(words) for words in said), Text("")]
    parts.append(Text(outcomes(report)))
    if report.causes:
        parts += [Text(""), causes(report)]
    if report.nearest_miss:
        parts += [Text(""), Text(miss(report.nearest_miss))]
        parts += [Text(f"  then held: {block}") for block in report.nearest_miss.held_by]
    if report.would_have_to_give:
        parts += [Text("What would have to give:"), *(Text(f"  {line}") for line in report.would_have_to_give)]
    parts += [Text(flag, style="dim") for flag in report.flags]
    if report.next_command:
        parts += [Text(""), Text(f"Export it: {report.next_command}")]
    return Group(*parts)


def _subject(report: Report) -> str:
    card = f" (card {report.card})" if report.card else ""
    ranked = "" if report.train_steps is None else f", ranked by a run of {report.train_steps:,} steps"
    return (
        f"study {report.study}: {report.workload}; on {report.device}, "
        f"budget {format_gib(report.budget_bytes)}{card}, limit {format_gib(report.limit_bytes)}{ranked}"
    )


def merged(lines: Iterable[Line]) -> list[Line]:
    """One line a strategy, with all that it is known as, in order of first mention."""
    found: dict[str, Line] = {}
    for line in lines:
        before = found.get(line.description)
        labels = line.labels if before is None else (*before.labels, *line.labels)
        found[line.description] = (before or line).model_copy(update={"labels": labels})
    return list(found.values())


def strategy(line: Line) -> Text:
    """What it is known as, what it is, then its figures in columns; short enough for a terminal of 80."""
    text = Text(heading(line.labels), style="bold") + Text(f"\n  {line.description}\n  ", style="not bold")
    if line.outcome is Outcome.OK:
        proof = "  proved" if line.role == "proof" else ""
        return (
            text
            + Text(_figures(line))
            + Text(proof + _flags(line), style="green")
            + Text(_memory(line) + _costs(line) + _remarks(line))
        )
    figures = f"{_figures(line)}  " if line.tokens_per_s is not None else ""
    ended = Text(f"{figures}{line.cause}{_flags(line)}", style=_STYLES.get(line.outcome, "red"))
    return text + ended + Text(_costs(line) + _remarks(line))


def heading(labels: Sequence[str]) -> str:
    """``winner, also recipe layer``: the first of the names that a strategy has, and the others."""
    first, *others = (label.replace(": ", " ") for label in labels)
    return f"{first}, also {' and '.join(others)}" if others else first


def _memory(line: Line) -> str:
    """A row on the peak. Of a runner-up only where another phase than the steady one set it."""
    said = []
    if line.peak is not None and (line.labels != ("runner-up",) or line.peak.phase is not Phase.STEADY):
        said.append(line.peak.words())
    if line.twin_ratio is not None and line.labels != ("runner-up",):
        said.append(f"{line.twin_ratio:.2f} times its eager twin's peak")
    return f"\n  {'; '.join(said)}" if said else ""


def _figures(line: Line) -> str:
    speed = "" if line.tokens_per_s is None else f"{line.tokens_per_s:,.0f} tokens/s"
    ratio = "" if line.winner_ratio is None else f"winner {line.winner_ratio:.2f}x"
    room = "" if line.headroom_bytes is None else f", {line.headroom_bytes / GIB:.2f} to spare"
    within = line.speed.median_within
    known = "" if within is None else f", step ±{within:.1%}"
    return f"{speed:>15}  {ratio:>13}  {format_gib(line.peak_device_bytes):>9}{room}{known}"


def _costs(line: Line) -> str:
    """A row on the run that is planned, on compile seconds, on when they are paid for, and on a slow card."""
    speed = line.speed
    said = [] if speed.run_tokens_per_s is None else [f"{speed.run_tokens_per_s:,.0f} tokens/s over the run"]
    said += [speed.compile_words, pays_words(speed.break_even)] if speed.compile_words else []
    said += [words] if speed.clocks is not None and (words := clock_words(speed.clocks)) else []
    return f"\n  {'; '.join(said)}" if said else ""


def _remarks(line: Line) -> str:
    """Rows on knobs without effect and on graph breaks; not of a runner-up."""
    if line.labels == ("runner-up",):
        return ""
    breaks = [f"graph breaks: {words}" for words in line.graph_breaks]
    return "".join(f"\n  {words}" for words in (*line.no_effect, *breaks))


def _flags(line: Line) -> str:
    return f"  [{', '.join(line.flags)}]" if line.flags else ""


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
        to_do = f"\nwhat to do: {cause.advice}" if cause.advice else ""
        table.add_row(Text(str(cause.count)), Text(cause.words), Text(cause.example + to_do))
    return table


def memory(columns: Sequence[MemoryColumn]) -> Table:
    """Where the memory goes, a column for each strategy."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    large = any((column.peak_device_bytes or 0) >= GIB for column in columns)
    unit, digits = (GIB, 2) if large else (MIB, 1)
    table.add_column("memory in GiB" if large else "memory in MiB")
    for column in columns:
        table.add_column(Text(column.label), justify="right")
    for name, words in PARTS:
        sizes = [getattr(column, name) for column in columns]
        if any(size is not None for size in sizes):
            table.add_row(words, *("" if size is None else f"{size / unit:.{digits}f}" for size in sizes))
    return table


def miss(nearest: NearestMiss) -> str:
    """The nearest miss in one sentence."""
    least = "at least " if nearest.at_least else ""
    return (
        f"Nearest miss: {nearest.description} needs {least}{format_gib(nearest.need_bytes)}, "
        f"{least}{format_gib(nearest.missed_by_bytes)} more than the limit."
    )
