"""Does a strategy hold, and what is shown beside its file."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from tests.tuner.made import record_of, result_of, throughput_of
from tests.tuner.test_run_again import LAYER, plan_of
from tuner.comparison import compare, compare_view
from tuner.errors import ExitCode
from tuner.kinds import Flag
from tuner.outcome import Outcome


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, ExitCode.DONE),
        ({"tokens_per_s": 2000.0}, ExitCode.DONE),
        ({"tokens_per_s": 761.0}, ExitCode.DONE),
        ({"tokens_per_s": 759.0}, ExitCode.DOES_NOT_HOLD),
        ({"outcome": Outcome.OVER_BUDGET}, ExitCode.DOES_NOT_HOLD),
        ({"outcome": Outcome.OOM, "tokens_per_s": None}, ExitCode.DOES_NOT_HOLD),
        ({"outcome": Outcome.CRASH, "tokens_per_s": None}, ExitCode.DOES_NOT_HOLD),
    ],
)
def test_what_holds(changes: dict[str, Any], code: ExitCode) -> None:
    found = compare(plan_of(), record_of(strategy=LAYER).model_copy(update=changes))
    assert found.exit_code is code
    assert found.sentence.startswith("It holds" if code is ExitCode.DONE else "It does not hold")


def test_without_a_spread_95_percent_are_needed() -> None:
    plan = plan_of(record_of(strategy=LAYER))
    assert compare(plan, record_of(tokens_per_s=951.0)).exit_code is ExitCode.DONE
    assert compare(plan, record_of(tokens_per_s=949.0)).exit_code is ExitCode.DOES_NOT_HOLD


def test_both_are_shown_side_by_side() -> None:
    record = record_of(tokens_per_s=900.0, result=result_of(throughput=throughput_of(900.0)))
    plan = plan_of()
    console = Console(width=100, record=True)
    console.print(compare_view(plan, record, compare(plan, record)))
    text = " ".join(console.export_text().split())
    assert "tokens/s 1,000 900 0.900" in text and "peak device 20.00 GiB 20.00 GiB 1.000" in text
    assert "in first_step 5.00 GiB 5.00 GiB 1.000" in text


def test_flags_are_shown_of_both() -> None:
    flagged = record_of(tokens_per_s=900.0, flags=(Flag.UNCHECKED,))
    console = Console(width=100, record=True)
    console.print(compare_view(plan_of(), flagged, compare(plan_of(), flagged)))
    assert "flags unchecked" in " ".join(console.export_text().split())
