from __future__ import annotations

from typing import Any

import pytest
import torch

from strategies.knob import Severity, Target
from strategies.optimizer import KNOB, PAGED


@pytest.mark.parametrize("adapter", ["full", "lora"])
def test_paged_is_impossible_on_a_cpu_and_under_emulation(
    conflict: Any, adapter: str, full: Any, cpu: Target, cuda: Any
) -> None:
    strategy = full(optimizer=PAGED)
    assert conflict(KNOB, strategy, cpu).severity is Severity.IMPOSSIBLE
    assert conflict(KNOB, strategy, cuda(adapter=adapter, emulated=True)).severity is Severity.IMPOSSIBLE
    assert KNOB.conflict(strategy, cuda()) is None


@pytest.mark.parametrize("adapter", ["lora", "qlora"])
@pytest.mark.parametrize("value", ["adamw-8bit", PAGED])
def test_8_bits_are_pointless_for_adapters(conflict: Any, value: Any, adapter: str, full: Any, cuda: Any) -> None:
    assert conflict(KNOB, full(optimizer=value), cuda(adapter=adapter)).severity is Severity.POINTLESS
    assert KNOB.conflict(full(optimizer="adamw"), cuda(adapter=adapter)) is None


def test_8_bit_is_legal_on_a_cpu(full: Any, cpu: Target) -> None:
    assert KNOB.conflict(full(optimizer="adamw-8bit"), cpu) is None


def _one_step(build: Any) -> Any:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(128, 64))
    before = weight.detach().clone()
    optimizer = build.optimizer_class([weight], lr=1e-2, **build.optimizer_defaults)
    weight.square().sum().backward()
    optimizer.step()
    assert not torch.equal(weight, before)
    return optimizer.state[weight]


def test_adamw_is_the_fused_one(build: Any) -> None:
    KNOB.apply(build, "adamw")
    assert build.optimizer_class is torch.optim.AdamW
    assert build.optimizer_defaults == {"fused": True}
    assert _one_step(build)["exp_avg"].dtype is torch.float32


def test_8_bit_has_states_of_a_byte(build: Any) -> None:
    KNOB.apply(build, "adamw-8bit")
    assert "fused" not in build.optimizer_defaults
    assert _one_step(build)["state1"].dtype is torch.uint8


def test_paged_is_bitsandbytes_paged_class(build: Any) -> None:
    KNOB.apply(build, PAGED)
    assert build.optimizer_class.__name__ == "PagedAdamW8bit"


def test_a_trainer_knows_the_names() -> None:
    from transformers.training_args import OptimizerNames

    assert {(KNOB.export(value, "trainer") or {}).get("optim") for value in KNOB.values} <= {
        str(n.value) for n in OptimizerNames
    }


def test_no_effect_speaks_against_both_8_bit_ones(full: Any) -> None:
    found = KNOB.rules_out(full(optimizer="adamw-8bit"), {"no_effect": ("optimizer",)})
    assert found is not None and found.trials == 1 and dict(found.where) == {"optimizer": ("adamw-8bit", PAGED)}
    assert KNOB.rules_out(full(optimizer="adamw-8bit"), {"no_effect": ("mode",)}) is None
    assert KNOB.rules_out(full(), {"no_effect": ("optimizer",)}) is None
    assert KNOB.equivalent(full(optimizer="adamw-8bit"), {"no_effect": ("optimizer",)}) == (), "speed may differ"
