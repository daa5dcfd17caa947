"""How much the partitioner of `torch.compile` may save for the backward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strategies.knob import COMPILE_OFF, Build, Conflict, Knob, Stage, Strategy, Target, Value, impossible, pointless

SMALLEST_WITH_DROPOUT = 0.5
"""Below about 0.45 random masks are drawn anew in the recomputation (pytorch #190717); 0.4 failed, 0.5 passed.
A search asks the twin test; this bound is for where none was made."""
ROUNDING = 1e-6
"""Of the shares of memory that torch computes in GB."""
SMALLEST_WHOLE = 0.2
"""Below this, in whole scope, the backward recomputes the forward at once."""


class ActivationMemoryBudget(Knob):
    """``torch._functorch.config.activation_memory_budget``. Means nothing with compile off."""

    name = "activation_memory_budget"
    values = (1.0, 0.9, 0.7, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)
    baseline = 1.0
    stage = Stage.COMPILE
    ordinal = True
    help = "how much torch.compile may save for the backward: 1 all it likes, 0 inputs alone"

    def active(self, strategy: Strategy) -> bool:
        """Something must be compiled at all."""
        return strategy["mode"] != COMPILE_OFF

    def conflict(self, strategy: Strategy, target: Target) -> Conflict | None:
        """Refuse wrong gradients first, then what checkpointing or the scope make of the value."""
        value = float(strategy[self.name])
        if value == self.baseline:
            return None
        if value < SMALLEST_WITH_DROPOUT and target.dropout > 0 and target.untested_dropout:
            return impossible(
                f"with dropout an activation memory budget below {SMALLEST_WITH_DROPOUT} makes gradients silently "
                "wrong (pytorch #190717), and no twin test says otherwise here"
            )
        if strategy["scope"] == "whole" and value < SMALLEST_WHOLE:
            return pointless(
                f"over the whole model an activation memory budget of {value:g} has a higher peak than larger values: "
                "the backward recomputes the whole forward at once"
            )
        return _beside_checkpointing(str(strategy["checkpointing"]), str(strategy["scope"]))

    def equivalent(self, strategy: Strategy, facts: Mapping[str, Any]) -> tuple[Value, ...]:
        """Return the values with which torch's partitioner comes to the same plan in every region."""
        plan = facts.get("plan") or {}
        regions = plan.get("regions", ())
        # Old plans do not say what else comes to the same; and a region from the cache is missing.
        if not plan.get("complete") or not regions or not all("same_above" in region for region in regions):
            return ()
        above = max(region["same_above"] for region in regions) + ROUNDING
        up_to = min(region["same_up_to"] for region in regions)
        unchanged = all(region["unchanged"] for region in regions)
        same = (v for v in self.values if v != strategy[self.name])
        return tuple(v for v in same if (unchanged if v == self.baseline else above < float(v) <= up_to))

    def recomputes(self, value: Value) -> bool:
        """Whatever is not saved is computed again; how much is the partitioner's choice."""
        return value != self.baseline

    def apply(self, build: Build, value: Value) -> None:
        """Set torch's config, also to 1: another value may be left from before.

        ``torch._dynamo.activation_memory_budget`` would be accepted too, and do nothing.
        """
        import torch._functorch.config

        torch._functorch.config.activation_memory_budget = float(value)

    def explain(self, value: Value) -> str:
        """Say what the share leads to."""
        if value == self.baseline:
            return "The compiler saves whatever makes the step fastest."
        if value == 0.0:
            return "The compiler saves the inputs of each compiled region alone and computes the rest again."
        return f"The compiler saves about {value:.0%} of what it would like to, and computes the cheapest rest again."

    def export(self, value: Value, trainer: str) -> dict[str, Any] | None:
        """Say nothing for 1, torch's default; the others are no argument of a Trainer."""
        return {} if trainer == "trainer" and value == self.baseline else None


def _beside_checkpointing(checkpointing: str, scope: str) -> Conflict | None:
    if checkpointing == "off":
        return None
    if scope not in ("whole", "layer"):
        return impossible(
            f"with scope={scope} checkpointing lies outside the compiled region, and the recomputation may be "
            "partitioned differently from the forward: CheckpointError"
        )
    if checkpointing == "every-block":
        return pointless("every block is checkpointed inside the compiled region, so nothing is left to decide there")
    return pointless("checkpointing and an activation memory budget spare the same activations: one of them is enough")


KNOB = ActivationMemoryBudget()
