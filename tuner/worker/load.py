"""From a workload to a model on the device, adapters included."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from tuner.worker.quantise import random_quantised
from tuner.worker.user_code import UserCodeError, load_function, users_code
from tuner.workload import Adapter, ModelKind, Precision, Workload

_TRUE_DTYPE = {
    Precision.BF16_TRUE: torch.bfloat16,
    Precision.BF16_MIXED: torch.float32,
    Precision.FP16_MIXED: torch.float32,
    Precision.FP32_TRUE: torch.float32,
}
_BASE_DTYPE = _TRUE_DTYPE | {Precision.BF16_MIXED: torch.bfloat16, Precision.FP16_MIXED: torch.float16}
"""Of the frozen base under an adapter: mixed precision keeps only what is trained in fp32."""


def import_libraries(workload: Workload) -> None:
    """Import what the workload needs, so that the phase `load` holds the model and nothing else."""
    if workload.model_kind is not ModelKind.FUNCTION:
        from transformers import AutoModelForCausalLM  # noqa: F401
    if workload.adapter is not Adapter.FULL:
        import peft  # noqa: F401


def load_model(workload: Workload, device: torch.device, seed: int, notes: list[str] | None = None) -> nn.Module:
    """Return the workload's model on `device`, in training mode, built there and not copied to it.

    `notes` gets a sentence where the model's own dropout was not the workload's.
    """
    torch.manual_seed(seed)
    found = _from_function if workload.model_kind is ModelKind.FUNCTION else _from_transformers
    model = found(workload, device, [] if notes is None else notes)
    if workload.adapter is not Adapter.FULL:
        model = _with_adapter(model, workload)
    model.train()
    return model


def _from_function(workload: Workload, device: torch.device, notes: list[str]) -> nn.Module:
    function = load_function(workload.model)
    dtype = (_TRUE_DTYPE if workload.adapter is Adapter.FULL else _BASE_DTYPE)[workload.precision]
    with users_code(workload.model), torch.device(device), _default_dtype(dtype):
        model = function()
    if not isinstance(model, nn.Module):
        raise UserCodeError(f"{workload.model} returned {type(model).__name__}, not a torch.nn.Module")
    _set_module_dropout(model, workload, notes)
    if workload.adapter is Adapter.QLORA:
        if not any(type(m).__name__ == "Linear4bit" for m in model.modules()):
            raise UserCodeError(f"{workload.model}: for adapter qlora the function has to return a 4-bit model")
        return model.to(device)
    return model.to(device=device, dtype=dtype)


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Build in `dtype` from the start: a model that is cast afterwards once had twice its size."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _base_dropout(workload: Workload) -> float:
    # Under an adapter the workload's dropout is the adapter's alone.
    return workload.dropout if workload.adapter is Adapter.FULL else 0.0


def _note_dropout(own: list[float], dropout: float, notes: list[str]) -> None:
    if any(value not in (0.0, dropout) for value in own):
        notes.append(f"the model's own dropout of {max(own):g} was set to {dropout:g}: --dropout says what is trained")


def _set_module_dropout(model: nn.Module, workload: Workload, notes: list[str]) -> None:
    dropout = _base_dropout(workload)
    layers = [m for m in model.modules() if isinstance(m, nn.modules.dropout._DropoutNd)]
    if dropout and not layers:
        raise UserCodeError(f"dropout: the model of {workload.model} has no dropout layer to set")
    _note_dropout([float(layer.p) for layer in layers], dropout, notes)
    for layer in layers:
        layer.p = dropout


def _config(workload: Workload, notes: list[str]) -> Any:
    from transformers import AutoConfig

    if workload.model_kind is ModelKind.SHAPE:
        assert workload.config is not None
        values = {k: v for k, v in workload.config.items() if k != "model_type"}
        config = AutoConfig.for_model(workload.config["model_type"], **values)
    else:
        config = AutoConfig.from_pretrained(workload.model)
    if workload.depth is not None:
        config.num_hidden_layers = workload.depth
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[: workload.depth]
    # A KV cache has no use in training, and fills memory.
    config.use_cache = False
    _set_dropout(config, _base_dropout(workload), notes)
    return config


def _set_dropout(config: Any, dropout: float, notes: list[str]) -> None:
    values = {n: v for n, v in vars(config).items() if "dropout" in n or n.endswith("_pdrop")}
    names = [n for n, v in values.items() if isinstance(v, (int, float)) and not isinstance(v, bool)]
    if dropout and not names:
        raise UserCodeError(f"dropout: a {config.model_type} config has no dropout to set")
    _note_dropout([float(values[n]) for n in names], dropout, notes)
    for name in names:
        setattr(config, name, dropout)


def _from_transformers(workload: Workload, device: torch.device, notes: list[str]) -> nn.Module:
    from transformers import AutoModelForCausalLM

    config = _config(workload, notes)
    trained = workload.adapter is Adapter.FULL
    dtype = (_TRUE_DTYPE if trained else _BASE_DTYPE)[workload.precision]
    if workload.init == "pretrained":
        return _pretrained(workload, config, dtype, device)
    if workload.adapter is Adapter.QLORA:
        return random_quantised(config, dtype, device)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")  # type: ignore[no-any-return]


def _pretrained(workload: Workload, config: Any, dtype: torch.dtype, device: torch.device) -> nn.Module:
    from transformers import AutoModelForCausalLM

    options: dict[str, Any] = {"config": config, "dtype": dtype, "attn_implementation": "sdpa"}
    options["device_map"] = {"": device}
    if workload.adapter is Adapter.QLORA:
        from transformers import BitsAndBytesConfig

        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
        )
    return AutoModelForCausalLM.from_pretrained(workload.model, **options)


def _with_adapter(model: nn.Module, workload: Workload) -> nn.Module:
    import peft

    targets: Any = workload.lora_targets
    if targets != "all-linear":
        targets = [t.strip() for t in targets.split(",")]
    lora = peft.LoraConfig(
        r=workload.lora_rank,
        lora_alpha=2 * workload.lora_rank,
        lora_dropout=workload.dropout,
        target_modules=targets,
        task_type="CAUSAL_LM" if hasattr(model, "prepare_inputs_for_generation") else None,
        # Random B: with PEFT's zeros every A would have no gradient, and a parity check would see nothing of it.
        init_lora_weights=False,
    )
    if workload.adapter is Adapter.QLORA:
        # What `prepare_model_for_kbit_training` does, less its fp32 norms and its embedding hook.
        model.requires_grad_(False)
    mixed = workload.precision in {Precision.BF16_MIXED, Precision.FP16_MIXED}
    try:
        return peft.get_peft_model(model, lora, autocast_adapter_dtype=mixed)
    except ValueError as error:
        raise UserCodeError(f"lora_targets: {error}") from error
