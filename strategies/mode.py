"""How much work `torch.compile` does for a kernel, and whether CUDA graphs replay the step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strategies.knob import COMPILE_OFF, GRAPH_MODES, Build, Conflict, Knob, Stage, Strategy, Target, Value, pointless
from strategies.ruled_out import RuledOut

AUTOTUNE_MULTIPROCESSORS = 68
"""Below this torch._inductor.utils.is_big_gpu is False and matrix products are left to ATen."""
WITHOUT_GRAPHS = {"reduce-overhead": "default", "max-autotune": "max-autotune-no-cudagraphs"}
RECORDED_NONE = 2
"""Strategies of one scope, with the same kind of sizes, that recorded no graph: then none there does."""
WITHOUT_AUTOTUNING = {"max-autotune-no-cudagraphs": "default", "max-autotune": "reduce-overhead"}

_SENTENCES = {
    COMPILE_OFF: "Nothing is compiled: the model runs eager.",
    "default": "Compiles with fused kernels; no CUDA graphs and no autotuning of matrix products.",
    "reduce-overhead": "Compiles and replays the kernels as CUDA graphs, which saves launches and takes some memory.",
    "max-autotune-no-cudagraphs": "Compiles and times several kernels for each matrix product, which takes minutes.",
    "max-autotune": "Times several kernels for each matrix product, which takes minutes, and replays CUDA graphs.",
}


class Mode(Knob):
    """The ``mode`` of `torch.compile`; with ``off`` nothing is compiled."""

    name = "mode"
    values = tuple(_SENTENCES)
    baseline = COMPILE_OFF
    stage = Stage.COMPILE
    slow = frozenset(WITHOUT_AUTOTUNING)
    help = "what torch.compile does: off, default, with CUDA graphs, with autotuning"

    def conflict(self, strategy: Strategy, target: Target) -> Conflict | None:
        """Name the cheaper mode that this one would repeat on the target."""
        mode = str(strategy[self.name])
        if mode in GRAPH_MODES and target.device_type == "cpu":
            return pointless(f"there are no CUDA graphs on a CPU, so {mode} repeats {WITHOUT_GRAPHS[mode]}")
        if mode in GRAPH_MODES and target.lengths_vary:
            return pointless(f"{mode} records a CUDA graph anew for each sequence length, and lengths vary here")
        if mode in WITHOUT_AUTOTUNING and _too_small(target):
            return pointless(
                f"the card has {target.multiprocessors} multiprocessors; below {AUTOTUNE_MULTIPROCESSORS} torch falls "
                f"back to ATen for matrix products, so {mode} repeats {WITHOUT_AUTOTUNING[mode]}"
            )
        return None

    def equivalent(self, strategy: Strategy, facts: Mapping[str, Any]) -> tuple[Value, ...]:
        """A graph mode that recorded no graph is the mode without them."""
        mode = str(strategy[self.name])
        if mode not in GRAPH_MODES or self.name not in facts.get("no_effect", ()):
            return ()
        return (WITHOUT_GRAPHS[mode],)

    def rules_out(self, strategy: Strategy, facts: Mapping[str, Any]) -> RuledOut | None:
        """What inductor records no graph of is decided by what is compiled, and by whether sizes are symbolic."""
        if strategy[self.name] not in GRAPH_MODES or self.name not in facts.get("no_effect", ()):
            return None
        alike = [(name, (strategy[name],)) for name in ("scope", "dynamic")]
        with_values = ", ".join(f"{name}={values[0]}" for name, values in alike)
        return RuledOut(
            where=((self.name, tuple(sorted(GRAPH_MODES))), *alike),
            reason=f"modes with CUDA graphs are not tried any more with {with_values}: "
            f"{RECORDED_NONE} trials recorded none",
            trials=RECORDED_NONE,
        )

    def apply(self, build: Build, value: Value) -> None:
        """Switch compiling on or off and pass the mode on."""
        build.compile.enabled = value != COMPILE_OFF
        if build.compile.enabled:
            build.compile.options["mode"] = value

    def explain(self, value: Value) -> str:
        """Say what the mode does."""
        return _SENTENCES[str(value)]

    def export(self, value: Value, trainer: str) -> dict[str, Any] | None:
        """Spell the mode for a Trainer; not the graph modes.

        A Trainer sets gradients to None after each step, and graphs with accumulation then stop
        with an overwritten output: that is not what was measured here.
        """
        if trainer != "trainer" or value in GRAPH_MODES:
            return None
        if value == COMPILE_OFF:
            return {"torch_compile": False}
        return {"torch_compile": True, "torch_compile_mode": value}


def _too_small(target: Target) -> bool:
    known = target.device_type == "cuda" and target.multiprocessors is not None
    return known and (target.multiprocessors or 0) < AUTOTUNE_MULTIPROCESSORS


KNOB = Mode()
