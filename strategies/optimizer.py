"""Which AdamW holds the state, and in how many bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strategies.knob import Build, Conflict, Knob, Stage, Strategy, Target, Value, impossible, pointless
from strategies.ruled_out import RuledOut

PAGED = "adamw-8bit-paged"

_SENTENCES = {
    "adamw": "torch's fused AdamW: two full-size states for each trained parameter, one kernel a step.",
    "adamw-8bit": "bitsandbytes' AdamW with 8-bit states: a quarter of the state or less, a slower step.",
    PAGED: "The same with its states in managed memory, which the driver may move to the host.",
}
_TRAINER_NAMES = {"adamw": "adamw_torch_fused", "adamw-8bit": "adamw_bnb_8bit", PAGED: "paged_adamw_8bit"}


class Optimizer(Knob):
    """The optimizer's class. Every value is AdamW, so that the same thing is trained."""

    name = "optimizer"
    values = tuple(_SENTENCES)
    baseline = "adamw"
    stage = Stage.OPTIMIZER
    help = "fused AdamW, or bitsandbytes' with 8-bit states, paged or not"

    def conflict(self, strategy: Strategy, target: Target) -> Conflict | None:
        """Refuse managed memory where it is not there or would hide from the cap."""
        value = strategy[self.name]
        if value == PAGED and target.device_type == "cpu":
            return impossible("there is no paged memory on a CPU: bitsandbytes would silently use the unpaged class")
        if value == PAGED and target.emulated:
            return impossible("paged states are managed memory, which hides from the cap of an emulated card")
        if value != self.baseline and target.adapter != "full":
            return pointless(f"under {target.adapter} the adapters' optimizer state is too small for 8 bits to matter")
        return None

    def rules_out(self, strategy: Strategy, facts: Mapping[str, Any]) -> RuledOut | None:
        """Which tensors are large enough for 8 bits is the model's doing: one trial tells it for all."""
        if self.name not in facts.get("no_effect", ()) or strategy[self.name] == self.baseline:
            return None
        packed = tuple(value for value in self.values if value != self.baseline)
        reason = "the 8-bit optimizers are not tried any more: no tensor of this model is large enough for 8-bit state"
        return RuledOut(where=((self.name, packed),), reason=reason)

    def apply(self, build: Build, value: Value) -> None:
        """Set class and defaults; importing bitsandbytes initialises CUDA, hence only here."""
        if value == self.baseline:
            import torch

            build.optimizer_class = torch.optim.AdamW
            build.optimizer_defaults["fused"] = True
            return
        from bitsandbytes.optim.adamw import AdamW8bit, PagedAdamW8bit

        build.optimizer_class = PagedAdamW8bit if value == PAGED else AdamW8bit

    def explain(self, value: Value) -> str:
        """Say what the state takes."""
        return _SENTENCES[str(value)]

    def export(self, value: Value, trainer: str) -> dict[str, Any] | None:
        """Spell the class for a Trainer."""
        return {"optim": _TRAINER_NAMES[str(value)]} if trainer == "trainer" else None


KNOB = Optimizer()
