"""A model of random weights whose linears are 4-bit from the start."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def random_quantised(config: Any, dtype: torch.dtype, device: torch.device) -> nn.Module:
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
    from bitsandbytes.nn.modules import Linear4bit, Params4bit

    made: Any = Linear4bit(
        linear.in_features,
        linear.out_features,
        bias=linear.bias is not None,
        compute_dtype=dtype,
        compress_statistics=True,
        quant_type="nf4",
        device="meta",
    )
    weight = torch.empty(linear.out_features, linear.in_features, dtype=dtype, device=device).normal_(std=0.02)
    quantised: Any = Params4bit(weight, requires_grad=False, quant_type="nf4", module=made)
    made.weight = quantised.to(device)
    if linear.bias is not None:
        made.bias = nn.Parameter(torch.zeros(linear.out_features, dtype=dtype, device=device), requires_grad=False)
    return made  # type: ignore[no-any-return]
