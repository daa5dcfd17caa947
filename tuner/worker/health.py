"""What was really compiled: graph breaks, recompiles, graphs, coverage, the partitioner's plan."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from tuner.measured import CompileReport, GraphBreak
from tuner.worker.coverage import Coverage, observe
from tuner.worker.partition import capture_plans

# "Graph break (user stack suppressed due to duplicate graph break) in user code at": one that was told before.
_SITE = re.compile(
    r'(?:from user code at|Graph break (?:\([^)]*\) )?in user code at)\s+(\S+?:\d+)|File "([^"]+)", line (\d+)'
)
_REASON = re.compile(r"(?:Graph Break Reason|Reason):\s*(?:.+:\n\s*)?(.+)")
"""Behind a first line that only says that there was one, and ends with a colon."""
_GUARD = re.compile(r"^\s*-?\s*(\d+/\d+: .+)$", re.MULTILINE)
_CUDAGRAPHS = "torch._inductor.cudagraph_utils.__cudagraphs"
"""Where inductor says, as a warning, why it records no graph of a region."""


class _Listener(logging.Handler):
    """Collects what dynamo says about graph breaks and recompiles; its counters miss data-dependent branches."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.breaks: Counter[tuple[str, str]] = Counter()
        self._reasons: dict[str, str] = {}
        self.recompiles: list[str] = []
        self.limit_hit = False
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
        elif record.name == _CUDAGRAPHS:
            self.graphs_skipped += [message.strip().splitlines()[0]] if "skipping cudagraph" in message else []
        elif "recompile_limit" in message or "cache_size_limit" in message:
            self.limit_hit = True


def _break_site(message: str) -> tuple[str, str]:
    site = _SITE.search(message)
    where = "?" if site is None else site[1] or f"{site[2]}:{site[3]}"
    reason = _REASON.search(message)
    return where, (reason[1] if reason else message.strip().splitlines()[0])[:300]


class CompileHealth:
    """Listens from before the first compile; asked at the end. Does nothing where nothing is compiled."""

    def __init__(self, enabled: bool, wants_plan: bool) -> None:
        self.enabled = enabled
        self._listener = _Listener()
        self._plans: list[dict[str, Any]] = []
        self._coverage = Coverage()
        if enabled:
            self._listen()
            if wants_plan:
                capture_plans(self._plans)

    def _listen(self) -> None:
        import torch._dynamo
        from torch._logging._internal import set_logs

        torch._dynamo.config.suppress_errors = False  # a hidden failure would be measured as eager
        set_logs(graph_breaks=True, recompiles=True)
        for name in list(logging.Logger.manager.loggerDict):
            if name.startswith("torch._dynamo") and name.endswith(("__graph_breaks", "__recompiles", "convert_frame")):
                logging.getLogger(name).addHandler(self._listener)
        logging.getLogger(_CUDAGRAPHS).addHandler(self._listener)

    def close(self) -> None:
        """Listen no more."""
        for name in list(logging.Logger.manager.loggerDict):
            logging.getLogger(name).removeHandler(self._listener)

    def activity(self) -> tuple[int, int]:
        """Return how much was compiled and recorded so far; it stands still once a strategy has settled."""
        if not self.enabled:
            return 0, 0
        from torch._dynamo.utils import counters

        return int(counters["stats"]["unique_graphs"]) + len(self._listener.recompiles), _recorded_graphs()

    def recorded_graphs(self) -> int:
        """Return the number of CUDA graphs recorded so far."""
        return self.activity()[1]

    def skipped_graphs(self) -> str | None:
        """Return why inductor last did not record a CUDA graph, in its own words."""
        return self._listener.graphs_skipped[-1] if self._listener.graphs_skipped else None

    def last_recompile(self) -> str | None:
        """Return the guard of the latest recompile."""
        return self._listener.recompiles[-1] if self._listener.recompiles else None

    def observe(self, forward: Callable[[], Any], modules: Sequence[nn.Module]) -> Any:
        """Run one forward and note which of `modules` ran compiled code (`coverage.observe`)."""
        if not self.enabled:
            return forward()
        result, self._coverage = observe(forward, modules)
        return result

    def report(self, compile_seconds: float) -> CompileReport:
        """Return all that was seen."""
        if not self.enabled:
            return CompileReport()
        from torch._dynamo.utils import counters

        breaks = tuple(GraphBreak(site=s, reason=r, count=n) for (s, r), n in self._listener.breaks.most_common())
        return CompileReport(
            graphs=int(counters["stats"]["unique_graphs"]),
            chosen_modules=self._coverage.chosen,
            compiled_modules=self._coverage.compiled,
            eager_ops=self._coverage.eager_ops,
            graph_breaks=breaks,
            recompiles=tuple(self._listener.recompiles),
            recompile_limit_hit=self._listener.limit_hit,
            compile_seconds=compile_seconds,
            cudagraph_skips=int(counters["inductor"]["cudagraph_skips"]),
            plan={"regions": self._plans} if self._plans else None,
        )


def _recorded_graphs() -> int:
    """Return the number of CUDA graphs recorded so far in this process."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return 0
    from torch._inductor import cudagraph_trees

    manager = cudagraph_trees.get_manager(torch.cuda.current_device(), create_if_none_exists=False)
    if manager is None:
        return 0
    # An itertools.count shows its next value in its repr alone.
    return int(re.sub(r"\D", "", repr(manager.graph_counter)) or 0)
