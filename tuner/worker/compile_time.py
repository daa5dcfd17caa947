"""Seconds of compiling by part, from torch's own timers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tuner.measured import CompileParts

_INDUCTOR = ("compile_fx_inner", "_recursive_pre_grad_passes", "_recursive_joint_graph_passes")
"""The last two run while AOT autograd is at work."""
_AT_COMPILE_TIME = ("_template_autotuning", "_template_precompiling", "benchmark_fused_nodes")
"""Ends of the names of timers that run inside inductor's."""
_AT_RUN_TIME = (
    "CachingAutotuner.benchmark_all_configs",
    "CachingAutotuner.coordinate_descent_tuning",
    "CachingAutotuner.combo_sequential_autotune",
)
"""A kernel's first call chooses among its configurations; outside inductor's timers."""

Timers = Mapping[str, Sequence[float]]
"""Seconds of each call, by the name of the timer."""


def compile_parts() -> CompileParts:
    """Return what this process has spent on compiling so far.

    `torch._dynamo.utils.compilation_time_metrics` keeps every call of every timer since the last
    `torch._dynamo.reset`, those of backward graphs that were compiled only when backward first ran
    included. `get_compilation_metrics` forgets all but the last graphs, and `calculate_time_spent`
    leaves out the C++ compiler.
    """
    from torch._dynamo.utils import compilation_time_metrics

    return parts_of(compilation_time_metrics)


def parts_of(timers: Timers) -> CompileParts:
    """Return the parts that `timers` tell; a timer that this version of torch does not have counts as nothing."""
    backend = _sum(timers, "OutputGraph.call_user_compiler")
    backward = _sum(timers, "backward._backward_impl")
    inductor = sum(_sum(timers, name) for name in _INDUCTOR)
    tuned = sum(sum(seconds) for name, seconds in timers.items() if name.endswith(_AT_COMPILE_TIME))
    # Without a card the kernels are C++. Their compilers run beside one another and beside inductor,
    # and their seconds add up to more than passed; inductor cannot have waited longer than it took.
    waited = _sum(timers, "async_compile.wait") + _sum(timers, "async_compile.precompile")
    kernels = min(max(waited, _sum(timers, "compile_file")), max(0.0, inductor - tuned))
    return CompileParts(
        dynamo=_left(_sum(timers, "_compile.compile_inner"), backend),
        aot_autograd=_left(backend + backward, inductor),
        inductor=_left(inductor, kernels + tuned),
        triton=round(kernels, 3),
        autotuning=round(tuned + sum(_sum(timers, name) for name in _AT_RUN_TIME), 3),
        graph_capture=round(_sum(timers, "CUDAGraphNode.record"), 3),
    )


def _sum(timers: Timers, name: str) -> float:
    return sum(timers.get(name, ()))


def _left(whole: float, within: float) -> float:
    return round(max(0.0, whole - within), 3)
