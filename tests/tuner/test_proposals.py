"""The opening, asked one by one against a table of what stands."""

from __future__ import annotations

from typing import Any

import pytest

from strategies.knob import Target
from tests.tuner.made import record_of
from tuner.outcome import Outcome
from tuner.proposals import Opening, Proposal
from tuner.record import TrialRecord
from tuner.space import Space, canonical, default_allowed, fingerprint
from tuner.units import GIB

CARD = Target(device_type="cuda", batch_size=16, adapter="lora", multiprocessors=132, layers=32)
FULL = Target(device_type="cpu", batch_size=16, adapter="full", precision="32-true", layers=2)
LIMIT = 23 * GIB


class Table:
    """Records by fingerprint; a launch that is not in it ends as `ends` says."""

    def __init__(self, ends: Any = None) -> None:
        self.known: dict[str, TrialRecord] = {}
        self.ends: Any = ends or (lambda strategy: {})

    def __call__(self, strategy: dict[str, Any]) -> TrialRecord | None:
        return self.known.get(fingerprint(strategy))

    def launch(self, proposal: Proposal) -> None:
        changes = {"limit_bytes": LIMIT, **self.ends(proposal.strategy)}
        record = record_of(changes.pop("outcome", Outcome.OK), proposal.strategy, **changes)
        self.known[record.fingerprint] = record


def opened(target: Target = CARD, table: Table | None = None, **filters: tuple[Any, ...]) -> list[Proposal]:
    table = table if table is not None else Table()
    space = Space(target, default_allowed(target, include_slow=False) | filters)
    opening, found = Opening(space, target.adapter, table), []
    while (proposal := opening.next()) is not None:
        found.append(proposal)
        table.launch(proposal)
    return found


def names(found: list[Proposal]) -> list[str]:
    return [proposal.source for proposal in found]


def line(slope: float) -> Any:
    """Peaks on a line through 2 GiB; over the limit it is out of memory."""

    def ends(strategy: dict[str, Any]) -> dict[str, Any]:
        if strategy["checkpointing"] == "off":
            return {}
        peak = int((2 + slope * strategy["micro_batch"]) * GIB)
        return {"outcome": Outcome.OK if peak <= LIMIT else Outcome.OOM, "peak_device_bytes": peak}

    return ends


def sizes(found: list[Proposal]) -> list[Any]:
    return [p.strategy["micro_batch"] for p in found if p.source == "recipe: checkpointing-largest"]


def test_the_whole_order_on_a_card() -> None:
    found = opened()
    assert list(dict.fromkeys(names(found))) == [
        *("reference: baseline", "reference: checkpointing", "recipe: layer-amb", "recipe: layer-amb-graphs"),
        *("recipe: layer-checkpointing", "recipe: layer", "recipe: checkpointing-largest"),
        *("recipe: leanest-whole", "recipe: whole"),
    ], "the eager leanest is the checkpointing reference under LoRA"
    assert [p.is_reference for p in found[:3]] == [True, True, False]
    assert len({fingerprint(p.strategy) for p in found}) == len(found)


def test_what_stands_is_not_proposed() -> None:
    table = Table()
    first = opened(table=table)
    assert opened(table=table) == [] and len(table.known) == len(first)


def test_the_leanest_right_after_references_that_died() -> None:
    def ends(strategy: dict[str, Any]) -> dict[str, Any]:
        return {"outcome": Outcome.OVER_BUDGET if strategy["mode"] == "off" else Outcome.OK}

    found = names(opened(table=Table(ends)))
    assert found[:4] == [
        "reference: baseline",
        "reference: checkpointing",
        "recipe: leanest-whole",
        "recipe: layer-amb",
    ]
    full = names(opened(FULL, Table(ends)))
    assert full[:4] == [*found[:2], "recipe: leanest-eager", "recipe: leanest-whole"]


def test_one_reference_that_died_moves_nothing() -> None:
    def ends(strategy: dict[str, Any]) -> dict[str, Any]:
        return {"outcome": Outcome.OOM} if strategy == canonical({}) else {}

    assert names(opened(table=Table(ends)))[:3] == [
        "reference: baseline",
        "reference: checkpointing",
        "recipe: layer-amb",
    ]


def test_filters_leave_references_in_and_recipes_outside_out() -> None:
    found = opened(mode=("default",), scope=("layer",))
    assert names(found) == [
        *("reference: baseline", "reference: checkpointing"),
        *("recipe: layer-amb", "recipe: layer-checkpointing", "recipe: layer"),
    ]


def test_a_filter_of_values_that_recipes_have_not() -> None:
    found = opened(expandable_segments=(True,))
    assert names(found) == ["reference: baseline", "reference: checkpointing"]


@pytest.mark.parametrize(
    ("slope", "tried"),
    [
        (0.5, [2, 16]),  # the line says all fit: the largest at once
        (2.0, [2, 8]),  # it says 10: 8, and 16 is too far above it
        (3.0, [2, 4, 8]),  # it says 7: 4, and 8 is near enough to be tried
        (6.0, [2, 4]),  # it says 3.5: nothing is left below, a step up
        (12.0, [2]),
    ],
)
def test_the_largest_micro_batch(slope: float, tried: list[int]) -> None:
    assert sizes(opened(table=Table(line(slope)))) == tried


def test_the_largest_micro_batch_steps_down_where_the_line_was_too_hopeful() -> None:
    def ends(strategy: dict[str, Any]) -> dict[str, Any]:
        if strategy["checkpointing"] != "off" and strategy["micro_batch"] > 2:
            return {"outcome": Outcome.OOM}
        return line(0.5)(strategy)  # type: ignore[no-any-return]

    assert sizes(opened(table=Table(ends))) == [2, 16, 8, 4]


def test_the_largest_micro_batch_within_a_filter() -> None:
    assert sizes(opened(table=Table(line(0.5)), micro_batch=(4, 8))) == [4, 8]
    assert sizes(opened(table=Table(line(0.5)), mode=("default",))) == []


def test_a_launch_that_decided_nothing_is_passed_over() -> None:
    # Interrupted: it does not stand, and the opening does not hang on it.
    table = Table(line(0.5))
    space = Space(CARD, default_allowed(CARD, include_slow=False))
    opening, seen = Opening(space, "lora", table), 0
    while opening.next() is not None:
        seen += 1
        assert seen < 50
    assert seen > 8


def test_a_reference_with_other_data_is_run_again() -> None:
    table = Table()
    opened(table=table)
    space = Space(CARD, default_allowed(CARD, include_slow=False))
    opening = Opening(space, "lora", table, seed=1)
    first = opening.next()
    assert first is not None and first.source == "reference: baseline"
    table.ends = lambda _: {"seed": 1}
    table.launch(first)
    assert opening.next() is None, "one of them is enough, and the recipes are known"
