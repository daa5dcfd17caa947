"""Whether a graph break is an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strategies.knob import COMPILE_OFF, Build, Knob, Stage, Strategy, Value
from strategies.ruled_out import RuledOut
from strategies.spelling import spell

BREAKS_ENOUGH = 2
"""Strategies of one scope that ended in a graph break; where a model breaks hangs on hardly anything else."""


class Fullgraph(Knob):
    """The ``fullgraph`` argument of `torch.compile`. Means nothing with compile off."""

    name = "fullgraph"
    values = (False, True)
    baseline = False
    stage = Stage.COMPILE
    help = "is a graph break an error? Without a break both values give the same"

    def active(self, strategy: Strategy) -> bool:
        """Something must be compiled at all."""
        return strategy["mode"] != COMPILE_OFF

    def equivalent(self, strategy: Strategy, facts: Mapping[str, Any]) -> tuple[Value, ...]:
        """Where there was no graph break the other value gives the same graph."""
        if not self.active(strategy) or facts.get("graph_breaks") != 0:
            return ()
        return (not strategy[self.name],)

    def rules_out(self, strategy: Strategy, facts: Mapping[str, Any]) -> RuledOut | None:
        """Where a graph breaks in one scope, and again, it will break."""
        if facts.get("outcome") != "graph_break" or not strategy[self.name]:
            return None
        scope = strategy["scope"]
        return RuledOut(
            where=((self.name, (True,)), ("scope", (scope,))),
            reason=f"{self.name}={spell(True)} is not tried any more with scope={scope}: "
            f"{BREAKS_ENOUGH} trials ended in a graph break",
            trials=BREAKS_ENOUGH,
        )

    def apply(self, build: Build, value: Value) -> None:
        """Pass the argument on."""
        build.compile.options["fullgraph"] = bool(value)

    def explain(self, value: Value) -> str:
        """Say what a graph break leads to."""
        if value:
            return "A graph break is an error: each compiled region is one graph or none."
        return "At a graph break the region is split, and what lies between runs eager."

    def export(self, value: Value, trainer: str) -> dict[str, Any] | None:
        """Say nothing for False, accelerate's default; True is no argument of a Trainer."""
        return {} if trainer == "trainer" and not value else None


KNOB = Fullgraph()
