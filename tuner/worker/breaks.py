"""What dynamo says while it compiles: graph breaks by site, the guards of recompiles, its limit."""

from __future__ import annotations

import logging
import re
from collections import Counter

from tuner.graph_breaks import library_of
from tuner.measured import GraphBreak

CUDAGRAPHS = "torch._inductor.cudagraph_utils.__cudagraphs"
"""The logger in which inductor says, as a warning, why it records no graph of a region."""
# "Graph break (user stack suppressed due to duplicate graph break) in user code at": one that was told before.
_SITE = re.compile(
    r'(?:from user code at|Graph break (?:\([^)]*\) )?in user code at)\s+(\S+?:\d+)|File "([^"]+)", line (\d+)'
)
_REASON = re.compile(r"(?:Graph Break Reason|Reason):\s*(?:.+:\n\s*)?(.+)")
"""Behind a first line that only says that there was one, and ends with a colon."""
_GUARD = re.compile(r"^\s*-?\s*(\d+/\d+: .+)$", re.MULTILINE)


class Listener(logging.Handler):
    """Collects what dynamo says about graph breaks and recompiles; its counters miss data-dependent branches."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.breaks: Counter[tuple[str, str]] = Counter()
        self._reasons: dict[str, str] = {}
        self.recompiles: list[str] = []
        self.steps_ended = 0
        """Optimizer steps, counted by whoever trains."""
        self.limit_step: int | None = None
        """Steps that had ended when the recompile limit was hit; None: it was not."""
        self.graphs_skipped: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if record.name.endswith("__graph_breaks"):
            site, reason = _break_site(message)
            # One site is one entry: what dynamo says of it again, and in other words, is the same break.
            self.breaks[site, reason if site == "?" else self._reasons.setdefault(site, reason)] += 1
        elif record.name.endswith("__recompiles"):
            found = _GUARD.search(message)
            self.recompiles.append(found[1].strip() if found else message.strip().splitlines()[0])
        elif record.name == CUDAGRAPHS:
            self.graphs_skipped += [message.strip().splitlines()[0]] if "skipping cudagraph" in message else []
        elif self.limit_step is None and ("recompile_limit" in message or "cache_size_limit" in message):
            self.limit_step = self.steps_ended

    def graph_breaks(self) -> tuple[GraphBreak, ...]:
        """Return one entry a site, the most frequent first."""
        return tuple(
            GraphBreak(site=site, reason=reason, count=count, library=library_of(site))
            for (site, reason), count in self.breaks.most_common()
        )


def _break_site(message: str) -> tuple[str, str]:
    site = _SITE.search(message)
    where = "?" if site is None else site[1] or f"{site[2]}:{site[3]}"
    reason = _REASON.search(message)
    return where, (reason[1] if reason else message.strip().splitlines()[0])[:300]
