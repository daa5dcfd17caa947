"""A strategy that was measured again, laid beside what its file says: does it hold?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from tuner.errors import ExitCode
from tuner.outcome import Outcome
from tuner.plan import ExportedPlan
from tuner.record import TrialRecord
from tuner.units import format_gib
from tuner.wording import result_words

HOLDS_FROM = 0.95
"""Of the recorded throughput, less the recorded spread."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Does a strategy hold?"""

    exit_code: ExitCode
    sentence: str


def compare(plan: ExportedPlan, record: TrialRecord) -> Comparison:
    """Return whether the strategy holds: `ok`, peak within the limit, 95 % of the throughput less the spread."""
    if record.outcome is not Outcome.OK or record.tokens_per_s is None:
        return Comparison(ExitCode.DOES_NOT_HOLD, "It does not hold: " + result_words(record, record.limit_bytes) + ".")
    needed = HOLDS_FROM * plan.measured.tokens_per_s * (1 - _spread(plan))
    if record.tokens_per_s < needed:
        slow = f"{record.tokens_per_s:,.0f} tokens/s, and {needed:,.0f} are 95 % of the file's less its spread"
        return Comparison(ExitCode.DOES_NOT_HOLD, f"It does not hold: {slow}.")
    told = plan.measured.tokens_per_s
    speed = f"{record.tokens_per_s / told:.0%} of the file's throughput, where {needed / told:.0%} are asked"
    return Comparison(ExitCode.DONE, f"It holds: within the limit of {format_gib(record.limit_bytes)}, at {speed}.")


def _spread(plan: ExportedPlan) -> float:
    """Return half of the recorded steps' p10 to p90, against the median."""
    m = plan.measured
    if not m.step_seconds or m.step_seconds_p10 is None or m.step_seconds_p90 is None:
        return 0.0
    return (m.step_seconds_p90 - m.step_seconds_p10) / 2 / m.step_seconds


def compare_view(plan: ExportedPlan, record: TrialRecord, result: Comparison) -> Table:
    """Return both columns of figures, with the sentence above."""
    table = Table(title=Text(result.sentence, style="bold"), title_justify="left", box=None, pad_edge=False)
    for name, justify in (("", "left"), ("the file", "right"), ("now", "right"), ("now / file", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    m = plan.measured
    _row(table, "tokens/s", m.tokens_per_s, record.tokens_per_s, lambda v: f"{v:,.0f}")
    throughput = record.result.throughput if record.result else None
    _row(table, "step, median s", m.step_seconds, throughput.step_seconds if throughput else None, lambda v: f"{v:.4f}")
    _row(table, "peak device", m.peak_device_bytes, record.peak_device_bytes, lambda v: format_gib(int(v)))
    _row(table, "peak reserved", m.peak_reserved_bytes, record.peak_reserved_bytes, lambda v: format_gib(int(v)))
    now = {p.phase: p.device_bytes for p in record.result.phases} if record.result else {}
    for phase, size in m.peak_device_bytes_by_phase.items():
        _row(table, f"  in {phase}", size, now.get(phase), lambda v: format_gib(int(v)))
    if plan.flags or record.flags:
        table.add_row("flags", ", ".join(plan.flags), ", ".join(record.flags), "")
    _row(table, "compile s", m.compile_seconds, record.compile_seconds, lambda v: f"{v:.1f}")
    return table


def blocks_view(record: TrialRecord) -> list[str]:
    """Return what the largest live blocks of the snapshot were allocated for, a line each; none without one."""
    blocks = record.result.largest_blocks if record.result else ()
    return ["What held memory, the largest first:", *(f"  {block}" for block in blocks)] if blocks else []


def _row(table: Table, name: str, old: float | None, new: float | None, show: Callable[[float], str]) -> None:
    ratio = f"{new / old:.3f}" if old and new else ""
    table.add_row(name, *("" if v is None else show(v) for v in (old, new)), ratio)
