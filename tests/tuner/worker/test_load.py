"""From a workload to a model: shapes, adapters, 4-bit weights, and functions of a user's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.models.small import Stack
from tests.tuner.worker.workloads import MODELS, shaped, users
from tuner.worker.data import Batches, Loss
from tuner.worker.load import import_libraries, load_model
from tuner.worker.user_code import UserCodeError, load_function
from tuner.workload import Adapter, ModelKind, Precision, Workload

CPU = torch.device("cpu")


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {n: p for n, p in model.named_parameters() if p.requires_grad}


def loss_of_a_step(model: nn.Module, workload: Workload) -> torch.Tensor:
    batches = Batches(workload, model, CPU, workload.batch_size, 0)
    return Loss(workload, model)(batches.step(0).micro_batches[0])


# Shapes


def test_the_same_seed_gives_the_same_weights() -> None:
    first, second, other = (load_model(shaped(), CPU, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[n], second[n]) for n in first)
    assert any(not torch.equal(first[n], other[n]) for n in first)


def test_it_is_in_training_and_keeps_no_cache() -> None:
    model: Any = load_model(shaped(), CPU, 0)
    assert model.training and model.config.use_cache is False
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize(("depth", "layers"), [(None, 2), (1, 1), (3, 3)])
def test_depth(depth: int | None, layers: int) -> None:
    model: Any = load_model(shaped(depth=depth), CPU, 0)
    assert len(model.model.layers) == layers


def test_depth_of_a_config_that_names_each_layers_type() -> None:
    workload = shaped("qwen-1.5b", {"layer_types": ["full_attention"] * 2}, depth=1)
    assert len(load_model(workload, CPU, 0).model.layers) == 1  # type: ignore[union-attr, arg-type]


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [
        (Precision.BF16_TRUE, torch.bfloat16),
        (Precision.BF16_MIXED, torch.float32),
        (Precision.FP32_TRUE, torch.float32),
    ],
)
def test_trained_parameters_by_precision(precision: Precision, dtype: torch.dtype) -> None:
    assert {p.dtype for p in load_model(shaped(precision=precision), CPU, 0).parameters()} == {dtype}


def test_dropout_is_set_and_nothing_else_is() -> None:
    model: Any = load_model(shaped(dropout=0.25), CPU, 0)
    assert model.config.attention_dropout == 0.25
    assert {layer.self_attn.attention_dropout for layer in model.model.layers} == {0.25}


def test_a_models_own_dropout_is_off_unless_asked_for() -> None:
    # Or the activation memory budget would make gradients wrong, though the workload says that there is no dropout.
    assert load_model(shaped(config={"attention_dropout": 0.5}), CPU, 0).config.attention_dropout == 0.0  # type: ignore[union-attr]
    lora = shaped(config={"attention_dropout": 0.5}, adapter=Adapter.LORA, dropout=0.1)
    model: Any = load_model(lora, CPU, 0)
    assert model.config.attention_dropout == 0.0
    assert {m.p for n, m in model.named_modules() if "lora_dropout" in n and isinstance(m, nn.Dropout)} == {0.1}


@pytest.mark.parametrize("workload", [shaped(config={"attention_dropout": 0.5}), users("with_dropout")])
def test_a_dropout_that_is_switched_off_is_told(workload: Workload) -> None:
    notes: list[str] = []
    load_model(workload, CPU, 0, notes)
    assert [note.startswith("the model's own dropout of 0.5 was set to 0") for note in notes] == [True]
    load_model(workload.model_copy(update={"dropout": 0.5}), CPU, 0, notes)
    assert len(notes) == 1


def test_a_folder(tmp_path: Path) -> None:
    load_model(shaped(), CPU, 3).save_pretrained(tmp_path)  # type: ignore[operator]
    given = shaped(model=str(tmp_path), model_kind=ModelKind.FOLDER)
    saved = load_model(shaped(), CPU, 3).state_dict()
    pretrained = load_model(given.model_copy(update={"init": "pretrained"}), CPU, 0).state_dict()
    random = load_model(given, CPU, 0).state_dict()
    assert all(torch.equal(saved[n], pretrained[n]) for n in saved)
    assert any(not torch.equal(saved[n], random[n]) for n in saved)


# Adapters


def test_lora_trains_its_adapters_alone() -> None:
    model = load_model(shaped(adapter=Adapter.LORA, lora_rank=4, precision=Precision.BF16_MIXED), CPU, 0)
    found = trainable(model)
    assert len(found) == 2 * 7 * 2  # A and B of seven linears in two layers
    assert all("lora_" in name and p.dtype is torch.float32 for name, p in found.items())
    assert {p.dtype for n, p in model.named_parameters() if n not in found} == {torch.bfloat16}
    assert not any("lm_head" in name for name in found)
    assert all(4 in p.shape for p in found.values())


def test_lora_without_autocast_keeps_the_models_dtype() -> None:
    model = load_model(shaped(adapter=Adapter.LORA, precision=Precision.BF16_TRUE), CPU, 0)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


def test_every_adapter_gets_a_gradient_in_the_first_step() -> None:
    # PEFT's own B of zeros would leave every A without one.
    workload = shaped(adapter=Adapter.LORA)
    model = load_model(workload, CPU, 0)
    loss_of_a_step(model, workload).backward()
    assert all(p.grad is not None and p.grad.any() for p in trainable(model).values())


def test_named_targets() -> None:
    model = load_model(shaped(adapter=Adapter.LORA, lora_targets="q_proj, down_proj"), CPU, 0)
    assert {name.split(".lora_")[0].rpartition(".")[2] for name in trainable(model)} == {"q_proj", "down_proj"}


def test_unknown_targets_are_the_users() -> None:
    with pytest.raises(UserCodeError, match=r"^lora_targets: .*no_such.*") as caught:
        load_model(shaped(adapter=Adapter.LORA, lora_targets="no_such"), CPU, 0)
    assert "\n" not in str(caught.value)


def test_lora_on_a_plain_module() -> None:
    workload = users(adapter=Adapter.LORA)
    model = load_model(workload, CPU, 0)
    loss = loss_of_a_step(model, workload)
    loss.backward()
    assert all(p.grad is not None for p in trainable(model).values())


def test_qlora_is_4_bit_and_no_copy_in_full_precision_remains() -> None:
    from bitsandbytes.nn.modules import Linear4bit

    workload = shaped(adapter=Adapter.QLORA, precision=Precision.BF16_MIXED, config={"hidden_size": 64})
    model: Any = load_model(workload, CPU, 0)
    layers = model.get_base_model().model.layers
    linears: list[Any] = [m for m in layers.modules() if isinstance(m, Linear4bit)]
    assert len(linears) == 2 * 7
    assert all(m.weight.dtype is torch.uint8 and m.weight.quant_state is not None for m in linears)
    full = [n for n, p in layers.named_parameters() if p.is_floating_point() and p.ndim == 2 and not p.requires_grad]
    assert full == []
    loss = loss_of_a_step(model, workload)
    loss.backward()
    assert torch.isfinite(loss)
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in trainable(model).values())


@pytest.mark.parametrize("tied", [True, False])
def test_qlora_makes_all_that_is_not_4_bit_as_a_plain_model_has_it(tied: bool) -> None:
    config = {"tie_word_embeddings": tied}
    plain = load_model(shaped(config=config), CPU, 0)
    quantised: Any = load_model(shaped(adapter=Adapter.QLORA, config=config), CPU, 0)
    base = quantised.get_base_model()
    buffers = dict(base.named_buffers())
    assert all(torch.equal(b, buffers[n]) for n, b in plain.named_buffers())  # rotary frequencies
    assert not any(t.is_meta for t in (*base.parameters(), *base.buffers()))
    assert torch.equal(base.model.norm.weight, torch.ones(16))
    assert base.model.embed_tokens.weight.std() == pytest.approx(0.02, rel=0.2)
    assert (base.lm_head.weight is base.model.embed_tokens.weight) is tied


# Functions of the user


def test_a_function_of_a_file() -> None:
    model = load_model(users(precision=Precision.BF16_TRUE), CPU, 0)
    assert type(model).__name__ == "Stack" and model.training
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


def test_a_function_of_a_module() -> None:
    workload = users().model_copy(update={"model": "tests.models.small:stack"})
    assert isinstance(load_model(workload, CPU, 0), Stack)


def test_a_function_builds_in_its_precision_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # A model that is cast afterwards stands in memory at twice its size for a moment.
    seen: list[torch.dtype] = []
    real = nn.Module.to

    def to(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        seen.extend(p.dtype for p in module.parameters())
        return real(module, *args, **kwargs)

    monkeypatch.setattr(nn.Module, "to", to)
    load_model(users(precision=Precision.BF16_TRUE), CPU, 0)
    assert set(seen) == {torch.bfloat16}
    assert torch.get_default_dtype() is torch.float32


def test_dropout_of_a_functions_model() -> None:
    assert load_model(users("with_dropout"), CPU, 0).drop.p == 0.0  # type: ignore[union-attr]
    assert load_model(users("with_dropout", dropout=0.25), CPU, 0).drop.p == 0.25  # type: ignore[union-attr]


def test_qlora_of_a_function_that_does_not_quantise_is_refused() -> None:
    with pytest.raises(UserCodeError, match="for adapter qlora the function has to return a 4-bit model"):
        load_model(users(adapter=Adapter.QLORA), CPU, 0)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("raises", r":raises raised KeyError: 'no such\\nkey'"),
        ("leaves", ":leaves raised SystemExit: 3"),
        ("returns_none", ":returns_none returned NoneType, not a torch.nn.Module"),
        ("no_such_function", ":no_such_function raised AttributeError: .*no attribute 'no_such_function'"),
        ("NOT_CALLABLE", ":NOT_CALLABLE is not a function"),
    ],
)
def test_functions_that_cannot_be_used(function: str, message: str) -> None:
    with pytest.raises(UserCodeError, match=message) as caught:
        load_model(users(function), CPU, 0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def model(:", r"file.py:model raised SyntaxError"),
        ("raise ValueError('first\\nsecond')", r"file.py:model raised ValueError: first$"),
        ("raise ValueError", r"file.py:model raised ValueError: nothing said$"),
    ],
)
def test_files_that_cannot_be_run(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "file.py").write_text(text)
    with pytest.raises(UserCodeError, match=message):
        load_function(f"{tmp_path}/file.py:model")


def test_running_out_of_memory_is_not_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text("def model():\n    raise MemoryError\n")
    workload = users().model_copy(update={"model": f"{tmp_path}/large.py:model"})
    with pytest.raises(MemoryError):
        load_model(workload, CPU, 0)


def test_a_file_is_run_once_and_finds_its_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "neighbour_of_the_model.py").write_text("count = []\n")
    (tmp_path / "random.py").write_text(
        "from neighbour_of_the_model import count\ncount.append(1)\n"
        "def model(): return len(count)\ndef loss(): return len(count)\n"
    )
    assert load_function(f"{tmp_path}/random.py:model")() == 1
    assert load_function(f"{tmp_path}/random.py:loss")() == 1
    import random

    assert random.__file__ and not random.__file__.startswith(str(tmp_path))


def test_a_module_that_is_not_there() -> None:
    with pytest.raises(UserCodeError, match=r"^no\.such:model raised ModuleNotFoundError"):
        load_function("no.such:model")


def test_a_model_of_the_users_own_imports_no_library() -> None:
    code = (
        "import sys, torch; from tests.tuner.worker.workloads import users; "
        "from tuner.worker.load import import_libraries, load_model; from tuner.worker.data import Loss; "
        "import_libraries(users()); model = load_model(users(), torch.device('cpu'), 0); Loss(users(), model); "
        "assert not {'transformers', 'peft', 'bitsandbytes'} & sys.modules.keys()"
    )
    root = MODELS.parents[2]
    ran = subprocess.run([sys.executable, "-c", code], cwd=root, env={**os.environ}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_libraries_are_imported_before_the_phase_of_loading() -> None:
    import_libraries(shaped(adapter=Adapter.LORA))
    assert {"transformers.models.auto.modeling_auto", "peft"} <= sys.modules.keys()
