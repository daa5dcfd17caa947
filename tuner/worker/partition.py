"""What torch's partitioner chose for an activation memory budget: saved bytes, and the budgets with the same plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_TRACED = (
    "min_act_size", "max_act_size", "saved_values_act_size", "expected_runtime",
    "more_aggressive_saved_values_mem_ratio", "aggressive_recomputation_saved_values_mem_ratio",
)  # fmt: skip
"""Figures of the structured trace ``min_cut_information``: sizes in GB; the ratios are the edges (from torch 2.13)."""


def capture_plans(plans: list[dict[str, Any]]) -> None:
    """Append a plan to `plans` for each region that is partitioned from now on, in this process.

    `saved_bytes` is there for every plan, and so is what other budgets come to the same plan
    (`same_plan`) where that can be told; what the trace tells is there only where the partitioner
    came to its knapsack, which it does not for budgets that a cheaper plan meets already. Of a
    compile that comes from the cache there is nothing.

    torch writes the trace with the whole joint graph around its figures, so it is taken at the
    place where it would be written, and not written.
    """
    from torch._functorch import partitioners

    choose = getattr(partitioners, "choose_saved_values_set", None)
    if choose is None:
        return
    traced: dict[str, Any] = {}
    cuts: list[list[Any]] = []
    cut = getattr(partitioners, "solve_min_cut", None)

    def keep(*_graph: Any, **given: Any) -> None:
        traced.update({name: float(given[name]) for name in _TRACED if given.get(name) is not None})
        traced["recomputed_nodes"] = len(given.get("recomputable_node_idxs", ()))

    def noted(*args: Any, **named: Any) -> Any:
        found = cut(*args, **named)  # type: ignore[misc]
        cuts.append(list(found[0]))
        return found

    def chosen(joint_graph: Any, node_info: Any, *args: Any, **named: Any) -> Any:
        traced.clear()
        cuts.clear()
        saved = choose(joint_graph, node_info, *args, **named)
        inputs = set(node_info.inputs)
        sizes = [partitioners._size_of(node) for node in saved if node not in inputs]
        budget = float(named.get("memory_budget", args[0] if args else 1))
        edges = same_plan(saved, cuts, node_info.inputs, budget, partitioners._size_of)
        plans.append({"memory_budget": budget, "saved_bytes": sum(map(int, sizes)), **edges, **traced})
        return saved

    partitioners.choose_saved_values_set = chosen
    if cut is not None:
        partitioners.solve_min_cut = noted
    if hasattr(partitioners, "create_structured_trace_for_min_cut_info"):
        partitioners.create_structured_trace_for_min_cut_info = keep
        partitioners.AOT_PARTITIONER_DEBUG = True


def same_plan(
    saved: Sequence[Any], cuts: Sequence[Sequence[Any]], inputs: Sequence[Any], budget: float, size_of: Any
) -> dict[str, float | bool]:
    """Return which other budgets of this region come to the plan `saved`; empty: it cannot be told.

    The partitioner tries three cuts in turn, each saving less than the one before, and takes the
    second or third whose share of what the first saves beyond the inputs lies under the budget
    (torch/_functorch/partitioners.py, `choose_saved_values_set`).

    Args:
        cuts: the values that each cut would save, in the order in which they were made.

    Returns:
        `unchanged`, it is what is saved without a budget; `same_above` and `same_up_to`, budgets
        above the one, and not above the other, come to this plan.
    """
    if not 0 < budget < 1 or not cuts:
        return {}
    unlimited = set(cuts[0])
    unchanged = set(saved) == unlimited

    def bytes_of(nodes: Sequence[Any]) -> int:
        return sum(int(size_of(node)) for node in nodes)

    least, most = bytes_of(inputs), bytes_of(cuts[0])
    if most <= least:  # every budget is ignored
        return {"unchanged": unchanged, "same_above": 0.0, "same_up_to": 1.0} if unchanged else {}
    shares = [(bytes_of(nodes) - least) / (most - least) for nodes in cuts]
    if len(cuts) == 2:
        return {"unchanged": unchanged, "same_above": shares[1], "same_up_to": 1.0}
    if len(cuts) == 3 and shares[2] < budget:
        return {"unchanged": unchanged, "same_above": shares[2], "same_up_to": shares[1]}
    return {"unchanged": unchanged, "same_above": budget, "same_up_to": budget} if unchanged else {}
