"""Whether one compiled graph serves every size."""

from __future__ import annotations

from typing import Any

from strategies.knob import COMPILE_OFF, Build, Conflict, Knob, Stage, Strategy, Target, Value, pointless

ARGUMENT: dict[Value, bool | None] = {"false": False, "true": True, "auto": None}
"""The ``dynamic`` argument of `torch.compile` for each value."""

_SENTENCES = {
    "false": "Every size gets its own graph, compiled for exactly that size.",
    "true": "One graph with symbolic sizes serves every size, from the first compile on.",
    "auto": "The first size is compiled as it is; when another size comes, once more with symbolic sizes.",
}


class Dynamic(Knob):
    """The ``dynamic`` argument of `torch.compile`. Means nothing with compile off."""

    name = "dynamic"
    values = tuple(_SENTENCES)
    baseline = "false"
    stage = Stage.COMPILE
    help = "symbolic sizes: false, true, or auto (only once a second size is met)"

    def active(self, strategy: Strategy) -> bool:
        """Something must be compiled at all."""
        return strategy["mode"] != COMPILE_OFF

    def conflict(self, strategy: Strategy, target: Target) -> Conflict | None:
        """With one length no second size is ever met."""
        if strategy[self.name] == "auto" and not target.lengths_vary:
            return pointless("all sequences have the same length, so dynamic=auto repeats dynamic=false")
        return None

    def apply(self, build: Build, value: Value) -> None:
        """Pass the argument on."""
        build.compile.options["dynamic"] = ARGUMENT[value]

    def explain(self, value: Value) -> str:
        """Say how sizes are treated."""
        return _SENTENCES[str(value)]

    def export(self, value: Value, trainer: str) -> dict[str, Any] | None:
        """Say nothing for ``auto``, a Trainer's default; the others are variables of its environment."""
        return {} if trainer == "trainer" and value == "auto" else None


KNOB = Dynamic()
