"""Compile seconds by part: from timers as torch leaves them behind, and of one real trace."""

from __future__ import annotations

import pytest
import torch

from tuner.measured import CompileParts
from tuner.worker.compile_time import compile_parts, parts_of

ON_A_CPU = {
    # Torch 2.13, two linear layers, a cold cache, two compilers; the sums of what it recorded.
    "_compile.compile_inner": [12.257],
    "OutputGraph.call_user_compiler": [11.842],
    "backward._backward_impl": [3.898],
    "_recursive_pre_grad_passes": [0.010],
    "_recursive_joint_graph_passes": [0.731],
    "compile_fx_inner": [9.8, 3.886],
    "GraphLowering.codegen": [7.288],
    "async_compile.wait": [5.475],
    "compile_file": [6.5, 3.5, 4.027],
}
ON_A_CARD = {
    "_compile.compile_inner": [20.0, 1.0],
    "OutputGraph.call_user_compiler": [17.0, 0.5],
    "backward._backward_impl": [8.0],
    "compile_fx_inner": [12.0, 6.0],
    "_recursive_joint_graph_passes": [1.5],
    "async_compile.precompile": [0.5],
    "async_compile.wait": [4.0, 2.0],
    "mm_template_precompiling": [3.0],
    "mm_template_autotuning": [1.0],
    "addmm_template_autotuning": [0.5],
    "CachingAutotuner.benchmark_all_configs": [0.25, 0.25],
    "cudagraphify.get_container": [0.01],
    "CUDAGraphNode.record": [0.3, 0.4],
}


def test_the_parts_of_a_compile_on_a_cpu() -> None:
    parts = parts_of(ON_A_CPU)
    assert parts.dynamo == pytest.approx(12.257 - 11.842)
    assert parts.aot_autograd == pytest.approx(11.842 + 3.898 - 13.686 - 0.741)
    assert parts.triton == pytest.approx(14.027), "the C++ compiler"
    assert parts.inductor == pytest.approx(13.686 + 0.741 - 14.027)
    assert (parts.autotuning, parts.graph_capture) == (0, 0)
    whole = parts.dynamo + parts.aot_autograd + parts.inductor + parts.triton
    assert whole == pytest.approx(12.257 + 3.898), "forward and backward, nothing twice"


def test_compilers_beside_one_another_take_no_longer_than_inductor() -> None:
    parts = parts_of(ON_A_CPU | {"compile_file": [30.0]})
    assert (parts.triton, parts.inductor) == (pytest.approx(14.427), 0)


def test_the_parts_of_a_compile_on_a_card() -> None:
    parts = parts_of(ON_A_CARD)
    assert parts.dynamo == pytest.approx(3.5)
    assert parts.aot_autograd == pytest.approx(17.5 + 8.0 - 19.5)
    assert parts.triton == pytest.approx(6.5)
    assert parts.autotuning == pytest.approx(4.5 + 0.5)
    assert parts.inductor == pytest.approx(19.5 - 6.5 - 4.5)
    assert parts.graph_capture == pytest.approx(0.7)


def test_nothing_compiled_takes_nothing() -> None:
    assert parts_of({}) == CompileParts()


def test_a_backward_that_is_compiled_only_when_it_runs_counts() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x @ x).sum()

    x = torch.randn(8, 8, requires_grad=True)
    torch.compile(function, backend="aot_eager")(x).backward()
    found = compile_parts()
    assert found.dynamo > 0 and found.aot_autograd > 0 and found.inductor == 0


def test_more_graphs_than_torch_s_own_list_of_metrics_keeps() -> None:
    compiled = [torch.compile(_added(n), backend="eager") for n in range(80)]
    for function in compiled:
        function(torch.ones(2))
    from torch._dynamo.utils import compilation_time_metrics

    assert len(compilation_time_metrics["OutputGraph.call_user_compiler"]) == 80


def _added(number: int) -> object:
    scope: dict[str, object] = {}
    exec(f"def add(x):\n    return x + {number}", scope)
    return scope["add"]
