"""From a workload to a model on the device, adapters included."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tuner.errors import TunerError
from tuner.workload import Adapter, ModelKind, Precision, Workload

_TRUE_DTYPE = {
    Precision.BF16_TRUE: torch.bfloat16,
    Precision.BF16_MIXED: torch.float32,
    Precision.FP16_MIXED: torch.float32,
    Precision.FP32_TRUE: torch.float32,
}
_BASE_DTYPE = _TRUE_DTYPE | {Precision.BF16_MIXED: torch.bfloat16, Precision.FP16_MIXED: torch.float16}
"""Of the frozen base under an adapter: mixed precision keeps only what is trained in fp32."""


class UserCodeError(TunerError):
    """The user's own model, loss or batch function cannot be used; the message says why."""


@contextlib.contextmanager
def users_code(spec: str) -> Iterator[None]:
    """Name the user's function in whatever it raises; running out of memory is told apart."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # the border to code that is not ours: anything may come
        raise UserCodeError(f"{spec} raised {type(error).__name__}: {error}") from error


def load_function(spec: str) -> Callable[..., Any]:
    """Return the function that ``package.module:function`` or ``file.py:function`` names.

    Raises:
        UserCodeError: the module cannot be imported, or has no such function.
    """
    source, _, name = spec.rpartition(":")
    with users_code(spec):
        if source.endswith(".py"):
            found = importlib.util.spec_from_file_location(Path(source).stem, source)
            assert found is not None and found.loader is not None
            module = importlib.util.module_from_spec(found)
            sys.modules[found.name] = module
            found.loader.exec_module(module)
        else:
            module = importlib.import_module(source)
        function = getattr(module, name)
    if not callable(function):
        raise UserCodeError(f"{spec} is not a function")
    return function  # type: ignore[no-any-return]


def import_libraries(workload: Workload) -> None:
    """Import what the workload needs, so that the phase `load` holds the model and nothing else."""
    if workload.model_kind is not ModelKind.FUNCTION:
        from transformers import AutoModelForCausalLM  # noqa: F401
    if workload.adapter is not Adapter.FULL:
        import peft  # noqa: F401


def load_model(workload: Workload, device: torch.device, seed: int) -> nn.Module:
    """Return the workload's model on `device`, in training mode, built there and not copied to it."""
    torch.manual_seed(seed)
    if workload.model_kind is ModelKind.FUNCTION:
        model = _from_function(workload, device)
    else:
        model = _from_transformers(workload, device)
    if workload.adapter is not Adapter.FULL:
        model = _with_adapter(model, workload)
    model.train()
    return model


def _from_function(workload: Workload, device: torch.device) -> nn.Module:
    function = load_function(workload.model)
    with users_code(workload.model), torch.device(device):
        model = function()
    if not isinstance(model, nn.Module):
        raise UserCodeError(f"{workload.model} returned {type(model).__name__}, not a torch.nn.Module")
    dtype = _TRUE_DTYPE[workload.precision] if workload.adapter is Adapter.FULL else _BASE_DTYPE[workload.precision]
    return model.to(device=device, dtype=dtype)


def _config(workload: Workload) -> Any:
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
    if workload.adapter is Adapter.FULL and workload.dropout:
        _set_dropout(config, workload.dropout)
    return config


def _set_dropout(config: Any, dropout: float) -> None:
    names = [n for n in vars(config) if ("dropout" in n or n.endswith("_pdrop")) and isinstance(getattr(config, n), float)]
    if not names:
        raise UserCodeError(f"dropout: a {config.model_type} config has no dropout to set")
    for name in names:
        setattr(config, name, dropout)


def _from_transformers(workload: Workload, device: torch.device) -> nn.Module:
    from transformers import AutoModelForCausalLM

    config = _config(workload)
    trained = workload.adapter is Adapter.FULL
    dtype = (_TRUE_DTYPE if trained else _BASE_DTYPE)[workload.precision]
    if workload.init == "pretrained":
        return _pretrained(workload, config, dtype, device)
    if workload.adapter is Adapter.QLORA:
        return _random_quantised(config, dtype, device)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")  # type: ignore[no-any-return]


def _pretrained(workload: Workload, config: Any, dtype: torch.dtype, device: torch.device) -> nn.Module:
    from transformers import AutoModelForCausalLM

    options: dict[str, Any] = {"config": config, "dtype": dtype, "attn_implementation": "sdpa", "device_map": {"": device}}
    if workload.adapter is Adapter.QLORA:
        from transformers import BitsAndBytesConfig

        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
        )
    return AutoModelForCausalLM.from_pretrained(workload.model, **options)  # type: ignore[no-any-return]


def _random_quantised(config: Any, dtype: torch.dtype, device: torch.device) -> nn.Module:
    """Return a model of random weights with 4-bit decoder linears, made leaf by leaf.

    The skeleton is on the meta device, so that no full-precision copy of the model ever stands
    beside the quantised one: at most one linear's weights do.
    """
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    head = model.get_output_embeddings()
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and module is not head:
            parent = model.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], _linear_4bit(module, dtype, device))
        elif any(True for _ in module.parameters(recurse=False)) or any(True for _ in module.buffers(recurse=False)):
            module.to_empty(device=device, recurse=False)
            with torch.device(device):
                model._init_weights(module)
    model.tie_weights()
    model.is_loaded_in_4bit = True  # what PEFT looks at to choose its 4-bit LoRA layer
    return model  # type: ignore[no-any-return]


def _linear_4bit(linear: nn.Linear, dtype: torch.dtype, device: torch.device) -> nn.Module:
    import bitsandbytes as bnb

    made = bnb.nn.Linear4bit(
        linear.in_features,
        linear.out_features,
        bias=linear.bias is not None,
        compute_dtype=dtype,
        compress_statistics=True,
        quant_type="nf4",
        device="meta",
    )
    weight = torch.empty(linear.out_features, linear.in_features, dtype=dtype, device=device).normal_(std=0.02)
    made.weight = bnb.nn.Params4bit(weight, requires_grad=False, quant_type="nf4", module=made).to(device)
    if linear.bias is not None:
        made.bias = nn.Parameter(torch.zeros(linear.out_features, dtype=dtype, device=device), requires_grad=False)
    return made


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
        task_type="CAUSAL_LM" if hasattr(model, "config") else None,
        # Random B: with PEFT's zeros every A would have no gradient, and a parity check would see nothing of it.
        init_lora_weights=False,
    )
    if workload.adapter is Adapter.QLORA:
        # What `prepare_model_for_kbit_training` does, less its fp32 norms and its embedding hook.
        model.requires_grad_(False)
    mixed = workload.precision in {Precision.BF16_MIXED, Precision.FP16_MIXED}
    try:
        return peft.get_peft_model(model, lora, autocast_adapter_dtype=mixed)  # type: ignore[arg-type, return-value]
    except ValueError as error:
        raise UserCodeError(f"lora_targets: {error}") from error
