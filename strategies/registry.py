"""The knobs, in order. A knob may read the ones before it: adding one is one line here."""

from __future__ import annotations

from strategies import (
    activation_memory_budget,
    checkpointing,
    dynamic,
    expandable_segments,
    fullgraph,
    micro_batch,
    mode,
    optimizer,
    scope,
    warmup_fraction,
)
from strategies.knob import Knob

KNOBS: tuple[Knob, ...] = (
    mode.KNOB,
    scope.KNOB,
    dynamic.KNOB,
    fullgraph.KNOB,
    checkpointing.KNOB,
    activation_memory_budget.KNOB,
    optimizer.KNOB,
    micro_batch.KNOB,
    warmup_fraction.KNOB,
    expandable_segments.KNOB,
)

_BY_NAME = {knob.name: knob for knob in KNOBS}


def by_name(name: str) -> Knob:
    """Return the knob of that name.

    Raises:
        KeyError: there is none.
    """
    return _BY_NAME[name]
