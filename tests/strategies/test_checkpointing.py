from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.utils.checkpoint import checkpoint

from strategies.checkpointing import KNOB, checkpointed
from strategies.knob import Severity


class Block(nn.Module):
    """A residual feed-forward layer with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(16, 64), nn.Linear(64, 16), nn.Dropout(0.2)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        hidden: torch.Tensor = self.down(self.drop(nn.functional.gelu(self.up(x))))
        return x + scale * hidden


def _model(layers: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[Block() for _ in range(layers)])


def _run(model: nn.Module) -> tuple[int, list[torch.Tensor | None]]:
    """Return the bytes kept after the forward, and the gradients."""
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    torch.manual_seed(1)
    batch = torch.randn(32, 16)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(batch).square().mean()
    loss.backward()
    return sum(kept.values()), [parameter.grad for parameter in model.parameters()]


def _wrapped(value: Any, build_of: Any, layers: int = 4) -> Any:
    model = _model(layers)
    build = build_of(model=model, layers=list(model))
    KNOB.apply(build, value)
    return model, build


@pytest.mark.parametrize("value", ["every-block", "every-second-block"])
def test_gradients_are_identical_and_fewer_bytes_are_kept(value: Any, build_of: Any) -> None:
    plain_bytes, plain = _run(_model())
    kept_bytes, gradients = _run(_wrapped(value, build_of)[0])
    assert all(a is not None and b is not None and torch.equal(a, b) for a, b in zip(plain, gradients, strict=True))
    assert kept_bytes < plain_bytes


def test_every_block_keeps_less_than_every_second_one(build_of: Any) -> None:
    sizes = [_run(_wrapped(value, build_of)[0])[0] for value in KNOB.values]
    assert sizes[1] < sizes[2] < sizes[0]


@pytest.mark.parametrize(
    ("value", "chosen"), [("off", set()), ("every-block", {0, 1, 2, 3, 4}), ("every-second-block", {0, 2, 4})]
)
def test_which_layers_are_wrapped(value: Any, chosen: set[int], build_of: Any) -> None:
    model, build = _wrapped(value, build_of, layers=5)
    assert {i for i, layer in enumerate(model) if "forward" in vars(layer)} == chosen
    assert build.hooks_removed == (1 if chosen else 0)


def test_the_keys_of_the_state_stay_as_they_were(build_of: Any) -> None:
    assert list(_wrapped("every-block", build_of)[0].state_dict()) == list(_model().state_dict())


def test_keyword_arguments_arrive() -> None:
    block: Any = Block().eval()
    x = torch.randn(2, 16, requires_grad=True)
    plain = block(x, scale=0.5)
    block.forward = checkpointed(block.forward)
    assert torch.equal(block(x, scale=0.5), plain)


def _frames(forward: Any) -> int:
    """Return how many graphs dynamo makes of a layer with this `forward`."""
    torch._dynamo.reset()
    layer: Any = Block()
    counter = CompileCounter()
    layer.forward = forward(layer.forward)
    layer.compile(backend=counter)
    layer(torch.randn(2, 16)).sum().backward()
    return int(counter.frame_count)


def test_dynamo_traces_the_wrapper_as_one_graph() -> None:
    assert _frames(checkpointed) == 1


def test_dynamo_skips_a_partial_in_silence() -> None:
    # Why `checkpointed` is a plain function; if this ever fails, the trap is gone.
    assert _frames(lambda forward: functools.partial(checkpoint, forward, use_reentrant=False)) == 0


def test_a_cache_would_be_written_twice_and_is_switched_off(build_of: Any) -> None:
    model: Any = _model()
    model.config = SimpleNamespace(use_cache=True)
    KNOB.apply(build_of(model=model, layers=list(model)), "every-block")
    assert model.config.use_cache is False


def test_a_llama_trains_the_same(build_of: Any) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
    )
    tokens = torch.randint(0, 64, (2, 12))

    def gradients(value: Any) -> Any:
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).train()
        KNOB.apply(build_of(model=model, layers=model.model.layers), value)
        model(input_ids=tokens, labels=tokens).loss.backward()
        return [parameter.grad for parameter in model.parameters()]

    pairs = zip(gradients("off"), gradients("every-block"), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_no_layers_is_an_error(build_of: Any) -> None:
    with pytest.raises(ValueError, match="no decoder layers"):
        KNOB.apply(build_of(model=nn.Linear(1, 1)), "every-block")


@pytest.mark.parametrize("value", ["every-block", "every-second-block"])
@pytest.mark.parametrize("scope", ["attention", "mlp"])
def test_impossible_around_graphs(value: Any, scope: str, full: Any, cuda: Any) -> None:
    def found(mode: str, scope: str) -> Any:
        return KNOB.conflict(full(mode=mode, scope=scope, checkpointing=value), cuda())

    assert found("reduce-overhead", scope).severity is Severity.IMPOSSIBLE
    assert found("max-autotune", scope).severity is Severity.IMPOSSIBLE
    assert found("default", scope) is None
    assert found("reduce-overhead", "layer") is None


def test_every_second_block_is_pointless_for_one_layer(conflict: Any, full: Any, cuda: Any) -> None:
    strategy = full(checkpointing="every-second-block")
    assert conflict(KNOB, strategy, cuda(layers=1)).severity is Severity.POINTLESS
    assert KNOB.conflict(strategy, cuda(layers=2)) is None
    assert KNOB.conflict(strategy, cuda(layers=None)) is None
    assert KNOB.conflict(full(checkpointing="every-block"), cuda(layers=1)) is None


def test_what_checkpoints_recomputes() -> None:
    assert [value for value in KNOB.values if not KNOB.recomputes(value)] == ["off"]
