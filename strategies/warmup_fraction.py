"""Whether a smaller batch comes first, so that compiling happens while little else is in memory."""

from __future__ import annotations

from typing import Any

from strategies.knob import COMPILE_OFF, Build, Conflict, Knob, Stage, Strategy, Target, Value, impossible, pointless

SMALLEST_SYMBOLIC = 2
"""dynamo compiles the sizes 0 and 1 as constants, whatever `dynamic` says."""


class WarmupFraction(Knob):
    """The warm-up batch as a share of the micro-batch; 1: there is none. Means nothing with compile off."""

    name = "warmup_fraction"
    values = (1.0, 0.5, 0.25)
    baseline = 1.0
    stage = Stage.BATCH
    ordinal = True
    help = "compile on a smaller batch first: share of the micro-batch; 1 means no warm-up batch"

    def active(self, strategy: Strategy) -> bool:
        """Something must be compiled at all."""
        return strategy["mode"] != COMPILE_OFF

    def conflict(self, strategy: Strategy, target: Target) -> Conflict | None:
        """The graph of the warm-up batch must be the one that serves the full batch."""
        fraction, micro_batch = float(strategy[self.name]), int(strategy["micro_batch"])
        rows = micro_batch * fraction
        if fraction == self.baseline:
            return None
        if not rows.is_integer():
            return impossible(f"{fraction:g} of a micro-batch of {micro_batch} is not a whole number of sequences")
        if strategy["dynamic"] != "true":
            return pointless("without dynamic=true the full batch is compiled again after a smaller warm-up batch")
        if rows < SMALLEST_SYMBOLIC:
            return pointless("a batch of 1 is compiled as a constant, so the full batch is compiled again after it")
        return None

    def apply(self, build: Build, value: Value) -> None:
        """Set the rows of the warm-up batch; reads the micro-batch, which was applied before."""
        build.warmup_rows = None if value == self.baseline else int(build.micro_batch * float(value))

    def explain(self, value: Value) -> str:
        """Say how large the warm-up batch is."""
        if value == self.baseline:
            return "There is no warm-up batch: the first batch is a full one."
        return f"A warm-up batch of {value} of the micro-batch is compiled first; it trains nothing."

    def export(self, value: Value, trainer: str) -> dict[str, Any] | None:
        """Say nothing where there is no warm-up batch; a Trainer has none."""
        return {} if trainer == "trainer" and value == self.baseline else None


KNOB = WarmupFraction()
