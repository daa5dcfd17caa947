"""How many sequences go through the model at once."""

from __future__ import annotations

from typing import Any

from strategies.knob import Build, Knob, Stage, Target, Value


class MicroBatch(Knob):
    """Sequences per forward. The rest of the optimizer step is accumulated, so all train the same step."""

    name = "micro_batch"
    values = (1,)
    baseline = 1
    stage = Stage.BATCH
    ordinal = True
    help = "sequences per forward: the divisors of the batch size, the rest by accumulation"

    def domain(self, target: Target) -> tuple[Value, ...]:
        """The divisors of the sequences per optimizer step, ascending."""
        return tuple(n for n in range(1, target.batch_size + 1) if target.batch_size % n == 0)

    def apply(self, build: Build, value: Value) -> None:
        """Set the sequences per forward."""
        build.micro_batch = int(value)

    def explain(self, value: Value) -> str:
        """Say how many sequences a forward has."""
        sequences = "sequence goes" if value == 1 else "sequences go"
        return f"{value} {sequences} through the model at once; the rest of the optimizer step is accumulated."

    def export(self, value: Value, trainer: str) -> dict[str, Any] | None:
        """Spell it for a Trainer, whose accumulation steps follow from the batch size."""
        return {"per_device_train_batch_size": value} if trainer == "trainer" else None


KNOB = MicroBatch()
