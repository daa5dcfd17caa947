"""What torch's partitioner chose for an activation memory budget: saved bytes, and the edges of the plan."""

from __future__ import annotations

from typing import Any

_TRACED = (
    "min_act_size", "max_act_size", "saved_values_act_size", "expected_runtime",
    "more_aggressive_saved_values_mem_ratio", "aggressive_recomputation_saved_values_mem_ratio",
)  # fmt: skip
"""Figures of the structured trace ``min_cut_information``: sizes in GB; the ratios are the edges (from torch 2.13)."""


def capture_plans(plans: list[dict[str, Any]]) -> None:
    """Append a plan to `plans` for each region that is partitioned from now on, in this process.

    `saved_bytes` is there for every plan; what the trace tells is there only where the partitioner
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

    def keep(*_graph: Any, **given: Any) -> None:
        traced.update({name: float(given[name]) for name in _TRACED if given.get(name) is not None})
        traced["recomputed_nodes"] = len(given.get("recomputable_node_idxs", ()))

    def chosen(joint_graph: Any, node_info: Any, *args: Any, **named: Any) -> Any:
        traced.clear()
        saved = choose(joint_graph, node_info, *args, **named)
        inputs = set(node_info.inputs)
        sizes = [partitioners._size_of(node) for node in saved if node not in inputs]
        budget = named.get("memory_budget", args[0] if args else 1)
        plans.append({"memory_budget": float(budget), "saved_bytes": sum(map(int, sizes)), **traced})
        return saved

    partitioners.choose_saved_values_set = chosen
    if hasattr(partitioners, "create_structured_trace_for_min_cut_info"):
        partitioners.create_structured_trace_for_min_cut_info = keep
        partitioners.AOT_PARTITIONER_DEBUG = True
