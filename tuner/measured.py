"""What a worker measures of one trial, one record for each side of it."""

from __future__ import annotations

from typing import Any

from tuner.kinds import Phase
from tuner.workload import Frozen


class PhaseRecord(Frozen):
    """The peaks of one phase. On a CPU allocated and reserved are None."""

    phase: Phase
    seconds: float
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    device_bytes: int | None = None
    """Most memory of the device that this process took, as sampled by the parent (RSS on a CPU)."""
    alloc_retries: int = 0
    steps: int = 0


class GraphBreak(Frozen):
    """One site at which dynamo broke the graph."""

    site: str
    """``file:line``."""
    reason: str
    count: int


class CompileReport(Frozen):
    """What was really compiled."""

    graphs: int = 0
    """Graphs that dynamo produced."""
    chosen_modules: int = 0
    """Modules that the scope names."""
    compiled_modules: int = 0
    """Of these, the ones whose calls entered a compiled region."""
    eager_ops: int = 0
    """Matrix products and attentions outside compiled regions in one forward of the chosen modules."""
    graph_breaks: tuple[GraphBreak, ...] = ()
    recompiles: tuple[str, ...] = ()
    """The guard that failed, for each recompile."""
    recompile_limit_hit: bool = False
    compile_seconds: float = 0.0
    cudagraph_skips: int = 0
    plan: dict[str, Any] | None = None
    """What the partitioner chose: saved bytes, edges; None: not compiled, or a cache hit."""


class Parity(Frozen):
    """Loss and a fixed sample of the gradient of the first full batch, before any optimizer step."""

    loss: float
    gradient: tuple[float, ...]
    """A fixed sample of elements of the trainable tensors' total gradient, fp32."""
    gradient_sizes: tuple[int, ...] = ()
    """How many of these elements belong to each sampled tensor, in order."""
    gradient_norm: float
    """Of the whole gradient."""
    tensors_without_gradient: int
    parameter_changed: bool
    """Did a sampled trainable parameter change in the first optimizer step?"""
    with_dropout: bool = False
    """Dropout was on: masks differ from strategy to strategy, so that nothing can be compared."""


class Throughput(Frozen):
    """The steady phase, compile time never in it."""

    tokens_per_s: float
    """Trained (non-padding) tokens per second, optimizer step and accumulation included."""
    step_seconds: float
    """Median of the optimizer steps."""
    step_seconds_p10: float
    step_seconds_p90: float
    steps: int
    tokens_per_step: float
