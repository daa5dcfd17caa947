"""How the CUDA allocator asks the driver for memory."""

from __future__ import annotations

from typing import Any

from strategies.knob import Build, Conflict, Knob, Stage, Strategy, Target, Value, pointless

VARIABLE = "PYTORCH_ALLOC_CONF"
SETTING = "expandable_segments:True"


class ExpandableSegments(Knob):
    """Segments that grow instead of blocks of fixed size. Read by torch when it is imported."""

    name = "expandable_segments"
    values = (False, True)
    baseline = False
    stage = Stage.PROCESS
    help = "the CUDA allocator's growing segments: less fragmentation, set before torch loads"

    def conflict(self, strategy: Strategy, target: Target) -> Conflict | None:
        """The setting is the CUDA allocator's."""
        if strategy[self.name] and target.device_type == "cpu":
            return pointless("expandable segments belong to the CUDA allocator, which a CPU does not use")
        return None

    def apply(self, build: Build, value: Value) -> None:
        """Ask for the variable; for False nothing needs to be set, it is torch's default."""
        if value:
            build.environment[VARIABLE] = SETTING

    def explain(self, value: Value) -> str:
        """Say how memory is asked for."""
        if value:
            return "The allocator grows its segments in place, which leaves fewer gaps where sizes vary."
        return "The allocator asks for blocks of fixed size, torch's default."

    def export(self, value: Value, trainer: str) -> dict[str, Any] | None:
        """Say nothing for torch's default; True is a variable of the environment, no argument."""
        return {} if trainer == "trainer" and not value else None


KNOB = ExpandableSegments()
