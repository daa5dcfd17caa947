"""What was really compiled. dynamo is real throughout; no code is generated."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from strategies.checkpointing import KNOB as CHECKPOINTING
from tests.models import small
from tests.models.small import WIDTH, Block, Branching, Disabled, Stack
from tests.tuner.worker.workloads import shaped
from tuner.build import ModelBuild, Plan, scope_modules
from tuner.evidence import compile_fault
from tuner.measured import CompileReport
from tuner.worker.health import CompileHealth

IDS = torch.zeros(4, 6, dtype=torch.long)
LINES = Path(small.__file__).read_text().splitlines()
BRANCH = next(n for n, line in enumerate(LINES, 1) if "the break's line" in line)


@pytest.fixture
def health() -> Iterator[CompileHealth]:
    made = CompileHealth(enabled=True, wants_plan=False)
    yield made
    made.close()


def compile_modules(model: nn.Module, scope: str, **options: Any) -> None:
    for module in scope_modules(model, scope):
        module.compile(backend="aot_eager", **options)


def observed(health: CompileHealth, model: nn.Module, scope: str) -> CompileReport:
    """Train two steps, then look at one forward."""
    for _ in range(2):
        model(IDS, IDS)["loss"].backward()
    health.observe(lambda: model(IDS, IDS)["loss"], scope_modules(model, scope))
    return health.report(0.0)


@pytest.mark.parametrize(("scope", "modules"), [("whole", 1), ("layer", 2), ("attention", 2)])
def test_all_is_compiled(health: CompileHealth, scope: str, modules: int) -> None:
    model = Stack()
    compile_modules(model, scope)
    report = observed(health, model, scope)
    assert (report.chosen_modules, report.compiled_modules, report.eager_ops) == (modules, modules, 0)
    assert report.graphs >= 1 and report.graph_breaks == () and report.recompiles == ()
    assert compile_fault(report) is None


def test_looking_compiles_nothing_and_leaves_nothing(health: CompileHealth) -> None:
    model = Stack()
    compile_modules(model, "layer")
    entries = [m._compiled_call_impl for m in scope_modules(model, "layer")]
    before = health.activity()
    observed(health, model, "layer")
    after = health.activity()
    assert after[0] == before[0] + 1  # the layers share one graph
    with torch.compiler.set_stance("fail_on_recompile"):
        observed(health, model, "layer")
    assert health.activity() == after
    assert [m._compiled_call_impl for m in scope_modules(model, "layer")] == entries


def test_the_trap_is_seen(health: CompileHealth) -> None:
    model = small.trapped()
    compile_modules(model, "layer")
    report = observed(health, model, "layer")
    assert (report.chosen_modules, report.compiled_modules) == (2, 0)
    assert report.graph_breaks == ()  # dynamo says nothing
    assert compile_fault(report) is not None


def test_a_layer_of_two_regions_does_not_stand_for_its_neighbour(health: CompileHealth) -> None:
    model = small.half_trapped()
    compile_modules(model, "layer")
    report = observed(health, model, "layer")
    assert (report.chosen_modules, report.compiled_modules) == (2, 1)
    assert compile_fault(report) == "compiled 1 of 2 chosen modules, the rest ran eager"


def test_the_trap_inside_one_whole_region(health: CompileHealth) -> None:
    class Outer(Stack):
        def forward(self, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
            return {"loss": super().forward(*args, **kwargs)["loss"] * 1.0}

    model = Outer()
    model.forward = functools.partial(checkpoint, model.forward, use_reentrant=False)  # type: ignore[method-assign]
    model.compile(backend="aot_eager")
    assert compile_fault(observed(health, model, "whole")) is not None


def test_our_own_checkpointing_is_no_trap(health: CompileHealth) -> None:
    model = Stack()
    build = ModelBuild(model, Plan(strategy={}, workload=shaped()))
    CHECKPOINTING.apply(build, "every-block")
    compile_modules(model, "layer")
    report = observed(health, model, "layer")
    assert (report.chosen_modules, report.compiled_modules) == (2, 2)
    assert compile_fault(report) is None


def test_a_layer_that_dynamo_is_told_to_leave(health: CompileHealth) -> None:
    model = Stack(Disabled)
    compile_modules(model, "layer")
    report = observed(health, model, "layer")
    assert (report.chosen_modules, report.compiled_modules) == (2, 0)
    assert compile_fault(report) is not None


def test_a_sequential_that_torch_skips(health: CompileHealth) -> None:
    # Frames of torch's own files are skipped, `nn.Sequential.forward` among them.
    model = Stack()
    compile_modules(model, "mlp")
    report = observed(health, model, "mlp")
    assert (report.chosen_modules, report.compiled_modules) == (2, 0)
    assert compile_fault(report) is not None


def test_a_sequential_of_which_a_part_is_compiled(health: CompileHealth) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Block(), nn.Linear(WIDTH, WIDTH))
    model.compile(backend="aot_eager")
    x = torch.randn(2, WIDTH)
    model(x)
    health.observe(lambda: model(x), [model])
    report = health.report(0.0)
    assert report.eager_ops == 2
    assert "2 matrix products" in str(compile_fault(report))


def test_build_lets_a_sequential_be_compiled(health: CompileHealth, quick_compile: None) -> None:
    model = Stack()
    build = ModelBuild(model, Plan(strategy={"mode": "default", "scope": "mlp"}, workload=shaped()))
    for stage in sorted({k.stage for k in _knobs()}):
        build.run_stage(stage)
    build.compile_modules()
    report = observed(health, model, "mlp")
    assert (report.chosen_modules, report.compiled_modules, report.eager_ops) == (2, 2, 0)


def _knobs() -> Any:
    from strategies.registry import KNOBS

    return KNOBS


def test_a_module_that_is_never_called(health: CompileHealth) -> None:
    model = Stack()
    compile_modules(model, "layer")
    idle = Block()
    idle.compile(backend="aot_eager")
    model(IDS, IDS)
    health.observe(lambda: model(IDS, IDS), [*scope_modules(model, "layer"), idle])
    assert (health.report(0.0).chosen_modules, health.report(0.0).compiled_modules) == (3, 2)


def test_a_branch_on_data_that_the_counters_miss(health: CompileHealth) -> None:
    from torch._dynamo.utils import counters

    model = Stack(Branching)
    compile_modules(model, "layer")
    report = observed(health, model, "layer")
    assert not counters["graph_break"]
    (found,) = report.graph_breaks
    assert found.site == f"{small.__file__}:{BRANCH}"
    assert "ata-dependent" in found.reason and found.count == 1
    assert compile_fault(report) is None  # a graph break is no fault unless fullgraph was asked


def test_an_ordinary_break_is_counted_by_site(health: CompileHealth) -> None:
    def printing(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        z = y * 3
        torch._dynamo.graph_break()
        return z

    torch.compile(printing, backend="aot_eager")(torch.ones(3))
    breaks = health.report(0.0).graph_breaks
    assert len({b.site for b in breaks}) == 2
    assert all(b.site.startswith(__file__) for b in breaks)


def test_recompiles_name_their_guard(health: CompileHealth) -> None:
    model = nn.Linear(3, 3)
    compiled = torch.compile(model, backend="aot_eager", dynamic=False)
    compiled(torch.ones(2, 3))
    before = health.activity()
    compiled(torch.ones(4, 3))
    assert health.activity() != before
    (guard,) = health.report(0.0).recompiles
    assert "size mismatch at index 0. expected 2, actual 4" in guard
    assert health.last_recompile() == guard
    assert not health.report(0.0).recompile_limit_hit


def test_the_recompile_limit(health: CompileHealth) -> None:
    model = Block()
    model.compile(backend="aot_eager", dynamic=False)
    for rows in range(2, 12):
        model(torch.ones(rows, WIDTH))
    health.observe(lambda: model(torch.ones(11, WIDTH)), [model])
    report = health.report(0.0)
    assert report.recompile_limit_hit
    assert report.compiled_modules == 0 and len(report.recompiles) >= 7


def test_past_the_limit_is_a_fault_even_where_the_last_call_was_compiled(health: CompileHealth) -> None:
    model = Block()
    model.compile(backend="aot_eager", dynamic=False)
    for rows in range(2, 12):
        model(torch.ones(rows, WIDTH))
        health.step_ended()
    health.observe(lambda: model(torch.ones(2, WIDTH)), [model])
    report = health.report(0.0)
    assert report.compiled_modules == 1 and report.recompile_limit_step == 8
    assert compile_fault(report) == "the recompile limit was hit at step 9, and calls past it ran eager"
    old = report.model_copy(update={"recompile_limit_step": None})
    assert compile_fault(old) == "the recompile limit was hit, and calls past it ran eager"


def test_with_compile_off_it_does_nothing() -> None:
    health = CompileHealth(enabled=False, wants_plan=False)
    assert health.observe(lambda: 7, []) == 7
    assert health.report(1.0) == CompileReport()
    assert health.activity() == (0, 0)


def test_a_hidden_compiler_failure_is_not_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._dynamo.config, "suppress_errors", True)
    health = CompileHealth(enabled=True, wants_plan=False)
    health.close()
    assert torch._dynamo.config.suppress_errors is False


def test_the_partitioners_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._functorch import config, partitioners

    monkeypatch.setattr(partitioners, "AOT_PARTITIONER_DEBUG", False)
    for name in [n for n in dir(partitioners) if "structured_trace" in n]:
        monkeypatch.setattr(partitioners, name, getattr(partitioners, name))
    monkeypatch.setattr(config, "activation_memory_budget", 0.3)
    health = CompileHealth(enabled=True, wants_plan=True)
    model = Block()
    model.compile(backend="aot_eager_decomp_partition")
    model(torch.randn(512, WIDTH, requires_grad=True)).sum().backward()
    health.close()
    plan = health.report(0.0).plan
    assert plan is not None
    (region,) = plan["regions"]
    assert region["memory_budget"] == 0.3
    assert region["recomputed_nodes"] > 0
