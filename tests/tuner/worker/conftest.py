"""What the tests of the worker share: no network, a fresh dynamo, a backend that generates no code."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: no test reaches the network

import torch
import torch._functorch.config
from torch import nn


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    """No test sees another's graphs, counters or activation memory budget."""
    # On two cores, with other work beside it, a thread for each makes a step take fifty times as long.
    torch.set_num_threads(1)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._functorch.config.activation_memory_budget = 1.0


@pytest.fixture
def quick_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trace and partition as ever, but generate no code: what dynamo does is the same, in a hundredth of the time."""
    compile_in_place: Callable[..., Any] = nn.Module.compile

    def quick(module: nn.Module, *, mode: str, **options: Any) -> None:
        compile_in_place(module, backend="aot_eager", **options)

    monkeypatch.setattr(nn.Module, "compile", quick)


@pytest.fixture(autouse=True)
def same_seed() -> None:
    torch.manual_seed(0)
