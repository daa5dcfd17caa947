"""The twin test, for real: what torch makes of random masks that it computes again."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import detect_fake_mode
from torch._inductor.compile_fx import partition_fn
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.virtualized import V
from torch.utils.checkpoint import checkpoint

from tests.field_reports.running import users as models_users
from tests.tuner.worker.workloads import measurement, shaped, users
from tuner.build import Applied, apply
from tuner.kinds import Flag, Kind, Phase
from tuner.measured import Parity
from tuner.outcome import Outcome, Verdict, classify_twin
from tuner.protocol import Attempt
from tuner.space import canonical
from tuner.worker import measure
from tuner.worker.__main__ import run_to_end
from tuner.worker.twin import TwinTest
from tuner.workload import Adapter, Lengths, Workload

LAYER = {"mode": "default", "scope": "layer"}
CHECKPOINTED = {"checkpointing": "every-block"}
SHOWS_IT = {
    "num_hidden_layers": 1,
    "hidden_size": 16,
    "intermediate_size": 43,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
"""With one layer, one sequence of 16 tokens and a rank of 1 torch 2.13 draws the masks anew at 0.4, and not at 0.5."""


def lora(dropout: float) -> Workload:
    return shaped(
        config=SHOWS_IT, adapter=Adapter.LORA, lora_rank=1, dropout=dropout, lengths=Lengths.fixed(16), batch_size=1
    )


def under_both(workload: Workload, strategy: dict[str, Any], twin: dict[str, Any]) -> tuple[TwinTest, Verdict]:
    """Run a test in this process; return it with what the parent makes of it."""
    made = measurement(workload, [], **strategy)
    made.request = made.request.model_copy(update={"twin": canonical(twin)})
    test = TwinTest(made)
    result = run_to_end(test, made)
    if made.health is not None:
        made.health.close()
    attempt = Attempt(request=made.request, exit_code=0, result=result, started_at=0.0, seconds=1.0)
    return test, classify_twin(attempt)


@pytest.fixture
def partitioned(monkeypatch: pytest.MonkeyPatch) -> None:
    """inductor's own passes, random numbers and partitioner, and no generated code: a tenth of the time."""
    compile_in_place: Callable[..., Any] = nn.Module.compile

    def partition(graph: Any, joint_inputs: Any, **rest: Any) -> Any:
        held = [node.meta.get("val") for node in graph.graph.nodes if node.op == "placeholder"]
        with V.set_fake_mode(detect_fake_mode(held)):
            return partition_fn(graph, joint_inputs, **rest)

    backend = aot_autograd(
        fw_compiler=_as_it_is, bw_compiler=_as_it_is, partition_fn=partition, decompositions=select_decomp_table
    )

    def quick(module: nn.Module, *, mode: str, **options: Any) -> None:
        compile_in_place(module, backend=backend, **options)

    monkeypatch.setattr(nn.Module, "compile", quick)


def _as_it_is(graph: Any, _: Any) -> Any:
    from functorch.compile import make_boxed_func

    for node in graph.graph.nodes:
        if node.target is torch.ops.prims.inductor_random.default:
            node.target = _from_seed
    graph.recompile()
    return make_boxed_func(graph.forward)


def _from_seed(size: list[int], seed: torch.Tensor, mode: str, **_: Any) -> torch.Tensor:
    """What generated code does, and torch's eager stand-in does not: the seed alone decides."""
    generator = torch.Generator().manual_seed(int(seed))
    made: torch.Tensor = getattr(torch, mode)(size, generator=generator)
    return made


@pytest.mark.usefixtures("partitioned")
@pytest.mark.parametrize(("budget", "right"), [(0.4, False), (0.5, True)])
def test_masks_drawn_anew_are_a_wrong_result(budget: float, right: bool) -> None:
    _, verdict = under_both(lora(0.05), LAYER | {"activation_memory_budget": budget}, LAYER)
    expected = (Outcome.OK, None) if right else (Outcome.WRONG_RESULT, Kind.NUMERICS)
    assert (verdict.outcome, verdict.kind) == expected, verdict.detail
    assert right or "its twin" in verdict.detail


def fake_compile(monkeypatch: pytest.MonkeyPatch, call: Callable[..., Any]) -> None:
    """Let `call(module, its number from 1, *inputs)` stand for each compiled module."""

    def compile_in_place(module: nn.Module, **_: Any) -> None:
        numbers = itertools.count(1)
        module._compiled_call_impl = lambda *inputs, **named: call(module, next(numbers), *inputs, **named)

    monkeypatch.setattr(nn.Module, "compile", compile_in_place)


@pytest.mark.parametrize(
    ("dropout", "recomputing", "right"),
    [
        (0.05, {"activation_memory_budget": 0.4}, False),
        (0.05, {"activation_memory_budget": 0.9}, True),
        (0.05, CHECKPOINTED, True),
        (0.0, {"activation_memory_budget": 0.4}, True),
        (0.0, {"activation_memory_budget": 0.9}, True),
        (0.0, CHECKPOINTED, True),
    ],
)
def test_with_a_compiler_that_draws_anew_below_a_budget(
    monkeypatch: pytest.MonkeyPatch, dropout: float, recomputing: dict[str, Any], right: bool
) -> None:
    def call(module: Any, _: int, *inputs: Any) -> Any:
        budget = torch._functorch.config.activation_memory_budget
        if budget == 1:
            return module._call_impl(*inputs)
        return checkpoint(module._call_impl, *inputs, use_reentrant=False, preserve_rng_state=budget > 0.45)

    fake_compile(monkeypatch, call)
    test, verdict = under_both(models_users("dropping", dropout=dropout), LAYER | recomputing, LAYER)
    expected = (Outcome.OK, None) if right else (Outcome.WRONG_RESULT, Kind.NUMERICS)
    assert (verdict.outcome, verdict.kind) == expected, verdict.detail
    assert test.m.throughput is None


GRAPHS = LAYER | {"mode": "reduce-overhead"}


@pytest.mark.parametrize("wrong_from", [3, 4])
def test_of_cuda_graphs_the_replay_is_compared(monkeypatch: pytest.MonkeyPatch, wrong_from: int) -> None:
    """The first call of a graph is eager and the second records it: what a replay gets wrong shows in the third."""

    def call(module: Any, number: int, *inputs: Any) -> Any:
        replayed = torch._functorch.config.activation_memory_budget < 1 and number >= wrong_from
        return module._call_impl(*inputs) * (1.5 if replayed else 1)

    fake_compile(monkeypatch, call)
    budget = {"activation_memory_budget": 0.9}
    _, verdict = under_both(models_users("dropping", dropout=0.1, batch_size=1), GRAPHS | budget, GRAPHS)
    assert verdict.outcome is (Outcome.WRONG_RESULT if wrong_from == 3 else Outcome.OK), verdict.detail


def test_what_is_rehearsed_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_compile(monkeypatch, lambda module, _, *inputs: module._call_impl(*inputs))
    workload = models_users("dropping", dropout=0.1)
    graphs, _ = under_both(workload, GRAPHS, {})
    eager, _ = under_both(workload, CHECKPOINTED, {})
    assert graphs.m.parity == graphs.m.twin_parity == eager.m.twin_parity


def test_a_test_says_of_no_knob_that_it_had_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_compile(monkeypatch, lambda module, _, *inputs: module._call_impl(*inputs))

    def with_graphs(*arguments: Any) -> Applied:
        applied = apply(*arguments)
        applied.records_graphs = True
        return applied

    monkeypatch.setattr(measure, "apply", with_graphs)
    test, verdict = under_both(models_users("dropping", dropout=0.1), GRAPHS, LAYER)
    assert Flag.NO_EFFECT not in verdict.flags
    said = "the step that was compared is no replay: mode: reduce-overhead recorded no CUDA graph"
    assert [note for note in test.m.notes if note.startswith(said)]


def test_checkpointing_draws_the_same_masks_in_eager() -> None:
    test, verdict = under_both(users("with_dropout", dropout=0.1), CHECKPOINTED, {})
    assert verdict.outcome is Outcome.OK and "the gradient by 0.00%" in verdict.detail
    own, other = test.m.parity, test.m.twin_parity
    assert own is not None and other is not None and own.with_dropout and other.with_dropout
    phases = [record.phase for record in test.m.phases]
    assert phases == [Phase.START, *[Phase.LOAD, Phase.FIRST_STEP] * 2]


def test_another_seed_would_draw_others() -> None:
    """The control: it is the seed that makes the masks the same."""

    def loss(seed: int) -> Parity:
        from tuner.worker.measure import Trial

        trial = Trial(measurement(users("with_dropout", dropout=0.1), []))
        trial.build()
        return trial.first_full_step(seed)

    assert loss(1) == loss(1) != loss(2)


def test_what_fails_under_the_first_has_no_second() -> None:
    test, verdict = under_both(users("raises"), CHECKPOINTED, {})
    assert test.m.twin_parity is None and test.m.parity is None
    assert verdict.outcome is Outcome.CRASH and verdict.phase is Phase.LOAD


def test_an_error_between_the_two_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(torch._dynamo, "reset", fail)
    test, verdict = under_both(users("with_dropout", dropout=0.1), CHECKPOINTED, {})
    assert verdict.outcome is Outcome.CRASH and "launch failure" in verdict.detail
    assert test.m.twin_parity is not None and test.m.parity is None


def test_the_first_of_the_two_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    import weakref

    from tuner.worker import twin
    from tuner.worker.measure import Trial

    models: list[Any] = []

    class Watched(Trial):
        def build(self) -> None:
            assert all(model() is None for model in models), "the first model is still there"
            super().build()
            models.append(weakref.ref(self.model))

    monkeypatch.setattr(twin, "Trial", Watched)
    under_both(users("with_dropout", dropout=0.1), CHECKPOINTED, {})
    assert len(models) == 2
