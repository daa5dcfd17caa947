"""Which of the chosen modules really run compiled code."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from tuner.worker.products import Products

_MARK = "tuner: chosen module "
_REGION = "Torch-Compiled Region: "
_COMPILED_CALL = ("## Call CompiledFxGraph", "CompiledFunction")
_EAGER_OPS = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::scaled_dot_product_attention"})
_NOT_EAGER = (*_COMPILED_CALL, *_EAGER_OPS)
"""Above an operation: compiled code, or another one that it is a part of (attention, of two products)."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """What one forward showed."""

    chosen: int = 0
    compiled: int = 0
    """Of the chosen modules, the ones that were called and entered a compiled region in each call."""
    eager_ops: int = 0
    """Matrix products and attentions of the chosen modules that ran outside compiled code."""
    compiled_ops: int | None = None
    """Those inside; None: it cannot be told."""


def observe(forward: Callable[[], Any], modules: Sequence[nn.Module], products: Products) -> tuple[Any, Coverage]:
    """Run one forward under the CPU profiler and return what it returned, and the coverage of `modules`.

    dynamo wraps each compiled frame in a region of the profiler; a frame that it skipped, for
    whatever reason, has none. Each call of a chosen module is marked, so that a layer that is split
    into two regions cannot stand for its neighbour that has none.
    """
    with _marked(modules), profile(activities=[ProfilerActivity.CPU]) as profiler:
        result = forward()
    events = profiler.events() or []
    calls: dict[int, list[bool]] = {}
    for event in events:
        if event.name.startswith(_MARK):
            entered = any(_of(other, event) for other in events if other.name.startswith(_REGION))
            calls.setdefault(int(event.name.removeprefix(_MARK)), []).append(entered)
    eager = [e for e in events if e.name in _EAGER_OPS and _under(e, (_MARK,)) and not _under(e, _NOT_EAGER)]
    return result, Coverage(
        chosen=len(modules),
        compiled=sum(all(entered) for entered in calls.values()),
        eager_ops=len(eager),
        compiled_ops=_inside(events, products) if products.known else None,
    )


def _inside(events: Iterable[Any], products: Products) -> int:
    regions = [e.name.removeprefix(_REGION) for e in events if e.name.startswith(_REGION) and _under(e, (_MARK,))]
    return sum(products.by_region.get(region, 0) for region in regions)


@contextlib.contextmanager
def _marked(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Mark the calls of the modules that `nn.Module.compile` was called on; the others are not compiled anyway."""
    entries = [(index, module, module._compiled_call_impl) for index, module in enumerate(modules)]
    chosen = [(index, module, entry) for index, module, entry in entries if entry is not None]
    for index, module, entry in chosen:
        module._compiled_call_impl = _mark(index, entry)
    try:
        yield
    finally:
        for _, module, entry in chosen:
            module._compiled_call_impl = entry


def _mark(index: int, entry: Callable[..., Any]) -> Callable[..., Any]:
    def marked(*args: Any, **kwargs: Any) -> Any:
        with record_function(f"{_MARK}{index}"):
            return entry(*args, **kwargs)

    return marked


def _of(event: Any, ancestor: Any) -> bool:
    return any(parent is ancestor for parent in _parents(event))


def _under(event: Any, prefixes: tuple[str, ...]) -> bool:
    return any(parent.name.startswith(prefixes) for parent in _parents(event))


def _parents(event: Any) -> Iterator[Any]:
    parent = event.cpu_parent
    while parent is not None:
        yield parent
        parent = parent.cpu_parent
