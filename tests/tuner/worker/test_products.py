"""The products of a compiled graph, counted where dynamo hands it over."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tuner.worker.products import Products, _name, products_of


@pytest.fixture
def products() -> Any:
    made = Products()
    made.listen()
    yield made
    made.close()


def attend(x: torch.Tensor) -> torch.Tensor:
    q = functional.linear(x, torch.eye(4))[None, None]
    y = functional.scaled_dot_product_attention(q, q, q)[0, 0] @ torch.eye(4)
    return torch.einsum("ij,jk->ik", y, torch.eye(4)) + torch.mm(y, torch.eye(4)) + y.matmul(torch.eye(4))


def test_every_kind_of_product_is_counted_and_nothing_else(products: Products) -> None:
    assert products.known
    torch.compile(attend, backend="eager")(torch.ones(4, 4))
    assert list(products.by_region.values()) == [6]


def test_those_of_a_checkpointed_part_are(products: Products) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4))

    def twice(x: torch.Tensor) -> torch.Tensor:
        kept: torch.Tensor = checkpoint(model, x, use_reentrant=False)
        return functional.linear(kept, torch.eye(4))

    torch.compile(twice, backend="eager")(torch.ones(2, 4, requires_grad=True))
    assert sum(products.by_region.values()) == 3


def test_a_librarys_own_operation_counts() -> None:
    class Node:
        op = "call_function"

        def __init__(self, name: str) -> None:
            self.target = type("Operation", (), {"__name__": name})()

    class Graph:
        def __init__(self, *names: str) -> None:
            self.graph = self
            self.nodes = [Node(name) for name in names]

        def modules(self) -> list[Any]:
            return [self]

    counted = ["gemv_4bit.default", "int8_linear_matmul.default", "_grouped_mm", "__matmul__", "flex_attention"]
    others = ["bilinear", "comma", "dequantize_4bit.default", "gelu", "attention_mask_of", "community"]
    assert products_of(Graph(*counted, *others)) == len(counted), [_name(Node(n)) for n in others]


def test_closed_it_counts_no_more() -> None:
    from torch._dynamo.output_graph import OutputGraph

    before = OutputGraph.call_user_compiler
    products = Products()
    products.listen()
    products.close()
    assert OutputGraph.call_user_compiler is before
