"""Which modules are compiled, each as a region of its own."""

from __future__ import annotations

from typing import Any

from strategies.knob import COMPILE_OFF, Build, Knob, Stage, Strategy, Value

_SENTENCES = {
    "whole": "Compiles the whole model with its loss: the least memory, the longest compile.",
    "layer": "Compiles each decoder layer by itself: one compile serves all layers; head and loss stay eager.",
    "attention": "Compiles the attention of each layer alone; the rest stays eager.",
    "mlp": "Compiles the feed-forward part of each layer alone; the rest stays eager.",
}


class Scope(Knob):
    """The compiled region. Means nothing with compile off."""

    name = "scope"
    values = tuple(_SENTENCES)
    baseline = "whole"
    stage = Stage.COMPILE
    help = "what is compiled: the whole model, each layer, or only attention or mlp"

    def active(self, strategy: Strategy) -> bool:
        """Something must be compiled at all."""
        return strategy["mode"] != COMPILE_OFF

    def apply(self, build: Build, value: Value) -> None:
        """Tell the engine which modules to compile."""
        build.compile.scope = str(value)

    def explain(self, value: Value) -> str:
        """Say what is compiled."""
        return _SENTENCES[str(value)]

    def export(self, value: Value, trainer: str) -> dict[str, Any] | None:
        """Say nothing for the whole model, which is all that a Trainer's arguments can compile."""
        return {} if trainer == "trainer" and value == "whole" else None


KNOB = Scope()
