"""The list of studies: as data, and on a terminal."""

from __future__ import annotations

from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tuner.outcome import Outcome
from tuner.progress import make_console
from tuner.record import StudySummary, best
from tuner.records import Records
from tuner.seen import seen
from tuner.space import describe
from tuner.units import format_gib
from tuner.wording import outcome_words
from tuner.workload import Frozen


class Listed(Frozen):
    """One study in the list."""

    name: str
    used_at: float
    """Unix time of its last search."""
    running: bool
    budget_bytes: int
    card: str | None = None
    """The card that the budget is of, where one was named."""
    device: str
    workload: str
    outcomes: dict[Outcome, int]
    best: str | None = None
    """The best strategy so far."""
    best_tokens_per_s: float | None = None


def listed(records: Records) -> list[Listed]:
    """Return the studies, the one that was searched last at the end."""
    return [_row(records, summary) for summary in sorted(records.studies(), key=lambda s: s.used_at)]


def _row(records: Records, summary: StudySummary) -> Listed:
    study = summary.study
    winner = best(seen(study, records.for_key(study.key)), study.limit_bytes)
    return Listed(
        name=study.name,
        used_at=summary.used_at,
        running=records.lease_holder(study.name) is not None,
        budget_bytes=study.budget_bytes,
        card=study.card,
        device=study.environment.device_name,
        workload=study.workload.describe(),
        outcomes=summary.counts,
        best=describe(winner.strategy) if winner else None,
        best_tokens_per_s=winner.tokens_per_s if winner else None,
    )


def print_studies(rows: list[Listed], console: Console | None = None) -> None:
    """Print one row for each study."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("study", "last searched", "budget", "on", "workload", "launches", "best so far"):
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in _cells(row)))
    (console or make_console()).print(table)


def _cells(row: Listed) -> list[str]:
    when = "now" if row.running else datetime.fromtimestamp(row.used_at, UTC).astimezone().strftime("%Y-%m-%d %H:%M")
    counts = ", ".join(f"{count} {outcome_words(outcome)}" for outcome, count in row.outcomes.items())
    best_so_far = f"{row.best}: {row.best_tokens_per_s:,.0f} tokens/s" if row.best else "none fits yet"
    budget = format_gib(row.budget_bytes) + (f" ({row.card})" if row.card else "")
    return [row.name, when, budget, row.device, row.workload, counts, best_so_far]
