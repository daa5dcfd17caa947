"""How many matrix products and attentions each compiled graph holds, counted as dynamo hands it over."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_PRODUCT = re.compile(r"(?:^|[._])(?:linear|matmul|mm|bmm|addmm|baddbmm|einsum|attention|gemv\w*|gemm\w*)(?=$|\.|__$)")
"""In an operation's name, as ``linear``, ``scaled_dot_product_attention``, ``bitsandbytes.gemv_4bit.default``."""


class Products:
    """The products of every graph, by compile id, from now on.

    Counted in the graph that dynamo hands to its backend: that comes before all caches, and is the
    same whatever the backend makes of a product (a library's call, a generated kernel, a CUDA graph).
    """

    def __init__(self) -> None:
        self.by_region: dict[str, int] = {}
        """By compile id, as the profiler's region has it: ``0/1``."""
        self.known = False
        """Can it be told with this torch?"""
        self.close: Callable[[], None] = lambda: None
        """Count no more."""

    def listen(self) -> None:
        """Begin to count."""
        from torch._dynamo.output_graph import OutputGraph
        from torch._guards import CompileContext

        original = getattr(OutputGraph, "call_user_compiler", None)
        if original is None or not hasattr(CompileContext, "current_compile_id"):
            return

        def counted(graph: Any, module: Any, *args: Any, **named: Any) -> Any:
            self.by_region[str(CompileContext.current_compile_id())] = products_of(module)
            return original(graph, module, *args, **named)

        def close() -> None:
            OutputGraph.call_user_compiler = original  # type: ignore[method-assign]

        OutputGraph.call_user_compiler = counted  # type: ignore[method-assign, assignment]
        self.known, self.close = True, close


def products_of(module: Any) -> int:
    """Return the matrix products and attentions of a `torch.fx.GraphModule`, those of its subgraphs included."""
    graphs = [found.graph for found in module.modules() if hasattr(found, "graph")]
    return sum(bool(_PRODUCT.search(_name(node))) for graph in graphs for node in graph.nodes)


def _name(node: Any) -> str:
    if node.op not in ("call_function", "call_method"):
        return ""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
