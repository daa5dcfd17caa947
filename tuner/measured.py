"""What a worker measures of one trial, one record for each side of it."""

from __future__ import annotations

from typing import Any, Literal

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
    """Times that the allocator had to flush its cache and try again."""
    ooms: int = 0
    """Out-of-memory errors that the allocator raised, caught ones included."""
    graph_pool_bytes: int | None = None
    """Reserved in the private pools of CUDA graphs at the phase's end; part of reserved."""
    steps: int = 0


class Growth(Frozen):
    """How memory rises from step to step: a straight line through what is held after each."""

    bytes_per_step: float
    low: float
    """Lower end of the slope's 95 % confidence interval, in bytes per step."""
    high: float
    steps: int
    """Steps that it was taken from."""


class MemoryLedger(Frozen):
    """What the memory of a step goes to, from one observed step at the end of `settle`.

    Bytes; None where it cannot be told. On a CPU the three peaks are of resident memory.
    """

    parameters_bytes: int | None = None
    """Parameters and buffers, each storage once."""
    gradients_bytes: int | None = None
    """As they are between the last backward and the optimizer."""
    optimizer_state_bytes: int | None = None
    activations_bytes: int | None = None
    """The rest of the step's peak: saved activations, logits, temporary tensors; never below zero.

    With the three above it makes up the peak. Gradients that are dropped between steps may not have
    been there when it was reached; then this is too small by as much.
    """
    activations_from: Literal["allocator", "graph_pools"] | None = None
    """``graph_pools``: under replay the allocator sees nothing; what the pools of CUDA graphs reserve stands for it."""
    forward_peak_bytes: int | None = None
    """Peak allocated up to the end of the forward."""
    backward_peak_bytes: int | None = None
    update_peak_bytes: int | None = None
    """Of the optimizer's step."""
    growth: Growth | None = None
    """None: fewer than four steps, or it cannot be told."""


class GraphBreak(Frozen):
    """One site at which dynamo broke the graph."""

    site: str
    """``file:line``."""
    reason: str
    count: int
    library: str = ""
    """Top-level package of the file, as ``transformers``; empty for a file of the user's own."""


class CompileParts(Frozen):
    """Seconds of compiling by part, summed over all graphs; they overlap, and do not sum to the whole."""

    dynamo: float = 0.0
    """Tracing Python."""
    aot_autograd: float = 0.0
    """Joint graph and partitioning; inductor's own time is not in it."""
    inductor: float = 0.0
    """Lowering and code generation; Triton's time is not in it."""
    triton: float = 0.0
    """Triton kernels, or on a CPU the C++ compiler."""
    autotuning: float = 0.0
    graph_capture: float = 0.0
    """Recording CUDA graphs."""


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
    compiled_ops: int | None = None
    """Those inside, as dynamo's graphs have them; None: it cannot be told."""
    graph_breaks: tuple[GraphBreak, ...] = ()
    recompiles: tuple[str, ...] = ()
    """The guard that failed, for each recompile."""
    recompile_limit_hit: bool = False
    recompile_limit_step: int | None = None
    """Optimizer steps that had ended when the limit was hit, warm-up batch not counted."""
    compile_seconds: float = 0.0
    """Of all steps before `steady`: what they took beyond a steady one. Cold or warm: the flags say."""
    parts: CompileParts | None = None
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
    losses: tuple[float, ...] = ()
    """Mean losses of the first optimizer steps, the first included; the same data in every strategy."""


class Clocks(Frozen):
    """What NVML says of the card beside a timed window. None: NVML does not tell."""

    sm_mhz: int | None = None
    """As soon as the window had ended; the three ``*_before`` are of the moment before it began."""
    temperature_c: int | None = None
    power_w: float | None = None
    sm_mhz_before: int | None = None
    temperature_c_before: int | None = None
    power_w_before: float | None = None
    throttled_by: tuple[str, ...] = ()
    """Reasons that held the clock down while the window ran, as ``sw_power_cap``."""


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
    median_within: float | None = None
    """Half the 95 % confidence interval of the median step, over the median; None: too few steps."""
    windows: int = 1
    """Windows timed: further ones until the median is known, and all anew where the card was throttled."""
    clocks: Clocks | None = None
