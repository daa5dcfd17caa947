"""What was really compiled: graph breaks, recompiles, graphs, coverage, the partitioner's plan."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from tuner.measured import CompileReport
from tuner.worker.breaks import CUDAGRAPHS, Listener
from tuner.worker.coverage import Coverage, observe
from tuner.worker.partition import capture_plans
from tuner.worker.products import Products


class CompileHealth:
    """Listens from before the first compile; asked at the end. Does nothing where nothing is compiled."""

    def __init__(self, enabled: bool, wants_plan: bool) -> None:
        self.enabled = enabled
        self._listener = Listener()
        self._plans: list[dict[str, Any]] = []
        self._products = Products()
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
        logging.getLogger(CUDAGRAPHS).addHandler(self._listener)
        self._products.listen()

    def close(self) -> None:
        """Listen no more."""
        for name in list(logging.Logger.manager.loggerDict):
            logging.getLogger(name).removeHandler(self._listener)
        self._products.close()

    def step_ended(self) -> None:
        """One more optimizer step has ended."""
        self._listener.steps_ended += 1

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
        result, self._coverage = observe(forward, modules, self._products)
        return result

    def report(self, compile_seconds: float) -> CompileReport:
        """Return all that was seen."""
        if not self.enabled:
            return CompileReport()
        from torch._dynamo.utils import counters

        return CompileReport(
            graphs=int(counters["stats"]["unique_graphs"]),
            chosen_modules=self._coverage.chosen,
            compiled_modules=self._coverage.compiled,
            eager_ops=self._coverage.eager_ops,
            compiled_ops=self._coverage.compiled_ops,
            graph_breaks=self._listener.graph_breaks(),
            recompiles=tuple(self._listener.recompiles),
            recompile_limit_hit=self._listener.limit_step is not None,
            recompile_limit_step=self._listener.limit_step,
            compile_seconds=compile_seconds,
            cudagraph_skips=int(counters["inductor"]["cudagraph_skips"]),
            plan=self._plan(complete=not counters["aot_autograd"]["autograd_cache_hit"]),
        )

    def plan_unchanged(self) -> bool:
        """Does torch save in every region exactly what it saves without an activation memory budget?"""
        plan = self.report(0.0).plan
        return plan is not None and plan["complete"] and all(r.get("unchanged") for r in plan["regions"])

    def _plan(self, complete: bool) -> dict[str, Any] | None:
        # A region that came from the cache was not partitioned here, and is missing among them.
        return {"regions": self._plans, "complete": complete} if self._plans else None


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
