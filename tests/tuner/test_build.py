"""A strategy on a model: stages, scopes, hooks, and one optimizer step that is the same at every micro-batch."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import torch._functorch.config
from torch import nn

from strategies.knob import Knob, Stage
from strategies.registry import KNOBS
from tests.models.small import Stack
from tests.tuner.worker.workloads import shaped
from tuner.build import Applied, BuildConflict, Plan, apply, decoder_layers, scope_modules
from tuner.mismatch import active_dropout
from tuner.worker.data import Batches, Loss
from tuner.worker.load import load_model
from tuner.workload import Adapter, Precision, Workload

CPU = torch.device("cpu")
MOE = {"num_experts": 4, "num_experts_per_tok": 2}
ATTENTION = ("LlamaAttention", "Qwen2Attention", "MistralAttention", "OlmoeAttention")
MLP = ("LlamaMLP", "Qwen2MLP", "MistralMLP", "OlmoeSparseMoeBlock")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._functorch.config.activation_memory_budget = 1.0


def applied_to(model: nn.Module, workload: Workload | None = None, **strategy: Any) -> Applied:
    return apply(model, Plan(strategy=strategy, workload=workload or shaped()))


def train(applied: Applied, workload: Workload, steps: int = 1) -> float:
    """Take steps as a loop of the user's would; return the last mean loss."""
    batches, loss_of = Batches(workload, applied.model, CPU, applied.micro_batch, 0), Loss(workload, applied.model)
    total = 0.0
    for index in range(steps):
        total = 0.0
        with applied.step() as step:
            for micro_batch in batches.step(index).micro_batches:
                with applied.forward():
                    loss = loss_of(micro_batch)
                step.backward(loss)
                total += float(loss.detach())
    return total


def gradients_of_a_step(workload: Workload, micro_batch: int) -> tuple[float, dict[str, torch.Tensor]]:
    model = load_model(workload, CPU, seed=1)
    applied = applied_to(model, workload, micro_batch=micro_batch)
    batches, loss_of = Batches(workload, model, CPU, micro_batch, 0), Loss(workload, model)
    found: dict[str, torch.Tensor] = {}

    def keep() -> None:
        found.update({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})

    total = 0.0
    with applied.step() as step:
        step.before_update = keep
        for part in batches.step(0).micro_batches:
            loss = loss_of(part)
            step.backward(loss)
            total += float(loss.detach())
    return total, found


# Scopes


def test_a_frozen_model_is_a_conflict() -> None:
    with pytest.raises(BuildConflict, match="no parameter that requires a gradient"):
        applied_to(Stack().requires_grad_(False))


# Stages


def _noting(apply_knob: Callable[..., None], stage: Stage, ran: list[Stage]) -> Callable[..., None]:
    def noted(_knob: Knob, build: Any, value: Any) -> None:
        ran.append(stage)
        apply_knob(build, value)

    return noted


def test_stages_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Stage] = []
    for knob in KNOBS:
        monkeypatch.setattr(type(knob), "apply", _noting(knob.apply, knob.stage, ran))
    applied_to(Stack(), mode="default", scope="layer", checkpointing="every-block")
    assert ran == sorted(ran)
    assert {Stage.PROCESS, Stage.WRAP, Stage.COMPILE, Stage.OPTIMIZER, Stage.BATCH} == set(ran)


def test_checkpointing_lies_inside_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(nn.Module, "compile", lambda module, **_: seen.append(module.forward.__name__))
    applied_to(Stack(), mode="default", scope="layer", checkpointing="every-second-block")
    assert seen == ["checkpointed_forward", "forward"]


def test_the_warm_up_batch_is_named_until_it_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.Module, "compile", lambda *_, **__: None)
    model = Stack()
    before = copy.deepcopy(model.state_dict())
    strategy: dict[str, Any] = {"mode": "default", "dynamic": "true", "micro_batch": 4, "warmup_fraction": 0.5}
    applied = applied_to(model, **strategy)
    assert [sentence for sentence in applied.unapplied if "call `Applied.warm_up`" in sentence]
    ran: list[int] = []

    def loss_of(rows: int) -> torch.Tensor:
        ran.append(rows)
        ids = torch.zeros(rows, 4, dtype=torch.long)
        loss: torch.Tensor = model(ids, ids)["loss"]
        return loss

    applied.warm_up(loss_of)
    assert ran == [2] and applied.unapplied == ()
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())
    applied_to(Stack()).warm_up(loss_of)  # this strategy has none
    assert ran == [2]


def test_another_optimizer_is_named() -> None:
    def sgd(params: Any, default: type[torch.optim.Optimizer], **defaults: Any) -> torch.optim.Optimizer:
        assert default is torch.optim.AdamW and defaults == {"fused": True}
        return torch.optim.SGD(params, lr=0.1)

    applied = apply(Stack(), Plan(strategy={}, workload=shaped()), sgd)
    assert isinstance(applied.optimizer, torch.optim.SGD)
    assert applied.unapplied == ("optimizer: SGD was used in place of AdamW",)


def test_the_same_class_with_another_rate_is_not_named() -> None:
    applied = apply(Stack(), Plan(strategy={}, workload=shaped()), lambda p, cls, **d: cls(p, lr=5e-5, **d))
    assert applied.unapplied == ()
    assert applied.optimizer.defaults["lr"] == 5e-5 and applied.optimizer.defaults["fused"]


def test_a_micro_batch_that_does_not_divide() -> None:
    with pytest.raises(BuildConflict, match="micro_batch 3 does not divide the batch size 8"):
        applied_to(Stack(), micro_batch=3)


# A model that is not the plan's


def test_the_models_own_dropout_refuses_what_it_makes_wrong() -> None:
    strategy: dict[str, Any] = {"mode": "default", "scope": "layer", "activation_memory_budget": 0.4}
    with pytest.raises(
        BuildConflict, match=r"silently wrong.*the model's dropout is 0.1, the plan was measured with 0"
    ):
        applied_to(Stack(dropout=0.1), **strategy)
    applied_to(Stack(), **strategy)
    assert applied_to(Stack(dropout=0.1)).unapplied == ("dropout: the model has 0.1, the plan was measured with 0",)


def test_dropout_is_found_where_models_keep_it() -> None:
    llama: Any = load_model(shaped(), CPU, 0)
    assert active_dropout(llama) == 0
    llama.config.attention_dropout = 0.2
    assert active_dropout(llama) == 0.2
    gpt2: Any = load_model(shaped(), CPU, 0)
    gpt2.config.summary_first_dropout = 0.1  # of a head that it has not
    assert active_dropout(gpt2) == 0
    functional = Stack()
    functional.blocks[0].dropout = 0.3  # type: ignore[assignment]
    assert active_dropout(functional) == 0.3


@pytest.mark.parametrize(
    ("loaded", "planned", "said"),
    [
        ({}, {"precision": Precision.BF16_TRUE}, "precision: trained parameters are float32"),
        ({}, {"adapter": Adapter.LORA}, "adapter: the plan was measured with lora, but every parameter"),
        ({"adapter": Adapter.LORA}, {}, "adapter: the model has LoRA adapters"),
        ({"adapter": Adapter.LORA}, {"adapter": Adapter.QLORA}, "adapter: the plan was measured with qlora"),
        ({}, {"config": {"num_hidden_layers": 3}}, "layers: the model has 2, the plan was measured with 3"),
    ],
)
def test_what_differs_from_the_plan_is_named(loaded: dict[str, Any], planned: dict[str, Any], said: str) -> None:
    applied = applied_to(load_model(shaped(**loaded), CPU, 0), shaped(**planned))
    assert [sentence.startswith(said) for sentence in applied.unapplied] == [True]


@pytest.mark.parametrize("adapter", [Adapter.FULL, Adapter.LORA])
@pytest.mark.parametrize("precision", Precision)
def test_what_the_worker_loads_is_the_plans(adapter: Adapter, precision: Precision) -> None:
    workload = shaped(adapter=adapter, precision=precision, dropout=0.1)
    assert applied_to(load_model(workload, CPU, 0), workload).unapplied == ()


# Hooks and checkpointing of others


def _hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) for m in model.modules())


def test_transformers_hook_is_taken_off() -> None:
    model: Any = load_model(shaped(), CPU, 0)
    model.enable_input_require_grads()
    assert _hooks(model) == 1
    applied = applied_to(model, checkpointing="every-block")
    assert _hooks(model) == 0
    assert any("requires_grad_ hook off Embedding" in sentence for sentence in applied.done)


@pytest.mark.parametrize("checkpointing", ["off", "every-block"])
def test_the_hook_that_peft_asks_transformers_for_is_taken_off(checkpointing: str) -> None:
    from peft import LoraConfig, get_peft_model

    model: Any = load_model(shaped(), CPU, 0)
    model.activation_checkpointing_enable()
    adapted: Any = get_peft_model(model, LoraConfig(target_modules="all-linear"))
    assert _hooks(adapted) >= 1
    applied_to(adapted, checkpointing=checkpointing)
    assert _hooks(adapted) == 0


def test_pefts_own_hook_is_taken_off() -> None:
    from peft import LoraConfig, get_peft_model

    class Checkpointing(Stack):
        is_gradient_checkpointing = True

        def get_input_embeddings(self) -> nn.Module:
            return self.embed

    adapted: Any = get_peft_model(Checkpointing(), LoraConfig(target_modules=["proj"]))
    assert [h.__name__ for h in adapted.base_model.model.embed._forward_hooks.values()] == ["make_inputs_require_grad"]
    applied_to(adapted, checkpointing="every-block")
    assert _hooks(adapted) == 0


def test_a_users_own_hook_stays() -> None:
    model = load_model(shaped(), CPU, 0)
    decoder_layers(model)[0].register_forward_hook(lambda *_: None)
    applied_to(model, checkpointing="every-block")
    assert _hooks(model) == 1


def test_transformers_own_checkpointing_is_switched_off() -> None:
    model: Any = load_model(shaped(), CPU, 0)
    model.activation_checkpointing_enable()
    applied = applied_to(model)
    assert not model.is_activation_checkpointing
    assert any("own checkpointing off" in sentence for sentence in applied.done)


@pytest.mark.parametrize(("adapter", "graphs"), [(Adapter.FULL, 1), (Adapter.LORA, 2)])
def test_a_model_with_its_cache_on_is_one_graph_for_all_layers(
    monkeypatch: pytest.MonkeyPatch, adapter: Adapter, graphs: int
) -> None:
    # With a KV cache dynamo compiles each layer anew, up to its limit of eight; then the rest runs eager.
    compile_in_place: Callable[..., Any] = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda m, *, mode, **o: compile_in_place(m, backend="eager", **o))
    workload = shaped(config={"num_hidden_layers": 4}, adapter=adapter)
    model: Any = load_model(workload, CPU, 0)
    getattr(model, "get_base_model", lambda: model)().config.use_cache = True  # as transformers has it
    torch._dynamo.utils.counters.clear()
    applied = applied_to(model, workload, mode="default", scope="layer")
    ids = torch.randint(0, 64, (8, 16))
    with applied.step() as step:  # the README's loop
        for rows in ids.split(applied.micro_batch):
            with applied.forward():
                loss = model(input_ids=rows, labels=rows).loss / applied.accumulation
            step.backward(loss)
    assert (
        torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs
    )  # the first layer's input needs no gradient under LoRA
    assert any("KV cache" in sentence for sentence in applied.done)


# Steps


@pytest.mark.parametrize("adapter", [Adapter.FULL, Adapter.LORA])
def test_every_micro_batch_trains_the_same_step(adapter: Adapter) -> None:
    workload = shaped(adapter=adapter)
    loss, whole = gradients_of_a_step(workload, micro_batch=8)
    for micro_batch in (1, 2, 4):
        other_loss, other = gradients_of_a_step(workload, micro_batch)
        assert other_loss == pytest.approx(loss, rel=1e-5)
        assert other.keys() == whole.keys()
        for name, gradient in whole.items():
            torch.testing.assert_close(other[name], gradient, rtol=1e-5, atol=1e-6)


def test_gradients_are_dropped_after_a_step() -> None:
    workload, model = shaped(), load_model(shaped(), CPU, 0)
    train(applied_to(model, workload), workload)
    assert all(p.grad is None for p in model.parameters())


def test_a_step_that_raises_changes_nothing() -> None:
    model = load_model(shaped(), CPU, 0)
    applied = applied_to(model)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match="of mine"), applied.step():
        raise RuntimeError("of mine")
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())


def test_fp16_overflow_skips_the_step_and_lowers_the_scale() -> None:
    workload = shaped(precision=Precision.FP16_MIXED)
    model = load_model(workload, CPU, 0)
    applied = applied_to(model, workload)
    before = copy.deepcopy(model.state_dict())
    scale = applied.scaler.get_scale()
    with applied.step() as step:
        step.backward(next(model.parameters()).sum() * float("inf"))
    assert applied.scaler.get_scale() == scale / 2
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())


def test_fp16_trains_and_shows_unscaled_gradients() -> None:
    half, single = shaped(precision=Precision.FP16_MIXED), shaped()
    norms = []
    for workload in (half, single):
        _, gradients = gradients_of_a_step(workload, micro_batch=8)
        norms.append(float(torch.stack([g.norm() for g in gradients.values()]).norm()))
    assert norms[0] == pytest.approx(norms[1], rel=0.01)
    model = load_model(half, CPU, 0)
    before = copy.deepcopy(model.state_dict())
    applied = applied_to(model, half)
    train(applied, half, steps=2)
    assert applied.scaler.is_enabled()
    assert any(not torch.equal(before[n], t) for n, t in model.state_dict().items())


@pytest.mark.parametrize(
    ("precision", "inside"),
    [
        (Precision.BF16_MIXED, torch.bfloat16),
        (Precision.FP16_MIXED, torch.float16),
        (Precision.FP32_TRUE, torch.float32),
    ],
)
def test_forward_runs_in_the_workloads_precision(precision: Precision, inside: torch.dtype) -> None:
    applied = applied_to(Stack(), shaped(precision=precision))
    with applied.forward():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is inside


def test_8_bit_states_are_8_bit_on_a_cpu() -> None:
    # Tensors under 4,096 elements stay in 32 bits.
    workload = shaped(config={"hidden_size": 64, "intermediate_size": 128})
    applied = applied_to(load_model(workload, CPU, 0), workload, optimizer="adamw-8bit")
    train(applied, workload)
    states = [t for s in applied.optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
    assert type(applied.optimizer).__name__ == "AdamW8bit"
    assert any(t.dtype is torch.uint8 for t in states)


# Compiling


@pytest.mark.parametrize("scope", ["whole", "layer", "attention", "mlp"])
def test_the_state_dict_keeps_its_keys(scope: str) -> None:
    model = Stack()
    plain = copy.deepcopy(model)
    applied_to(model, mode="default", scope=scope, checkpointing="every-block")
    assert list(model.state_dict()) == list(plain.state_dict())
    plain.load_state_dict(model.state_dict(), strict=True)
    compiled = [m for m in model.modules() if m._compiled_call_impl is not None]
    assert compiled == list(scope_modules(model, scope))


def test_options_reach_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(nn.Module, "compile", lambda module, **options: seen.append(options))
    applied_to(Stack(), mode="reduce-overhead", dynamic="true", fullgraph=True, activation_memory_budget=0.5)
    assert seen == [{"mode": "reduce-overhead", "dynamic": True, "fullgraph": True}]
    assert torch._functorch.config.activation_memory_budget == 0.5


def test_compile_off_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.Module, "compile", lambda *_, **__: pytest.fail("compiled"))
    applied = applied_to(Stack(), mode="off", scope="layer")
    assert not any("compiled" in sentence for sentence in applied.done)
