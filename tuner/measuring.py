"""What measures on a bench: requests and an executor, after what an earlier search left has ended."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.bench import Bench
from tuner.executor import LocalExecutor
from tuner.launcher import Launcher, default_deadlines
from tuner.listener import Listener
from tuner.requests import Requests
from tuner.spec import StudySpec
from tuner.strays import find_strays, kill_strays


def make_requests(bench: Bench, study: str, spec: StudySpec) -> Requests:
    """Return what makes this bench's requests."""
    return Requests(
        study=study,
        key=bench.key,
        workload=bench.workload,
        device_type=bench.device.type,
        device_uuid=bench.device.uuid,
        limits=bench.limits,
        deadlines=default_deadlines(spec.time_budget_seconds) | spec.deadline,
        seed=spec.seed,
        root=bench.root,
        cold=spec.cold,
    )


def make_executor(bench: Bench, spec: StudySpec, environment: Mapping[str, str]) -> LocalExecutor:
    """Return the executor of this bench's device."""
    on_cpu = bench.device.type == "cpu"
    return LocalExecutor(
        Launcher(environment, host_total_bytes=bench.limits.t_bytes if on_cpu else None),
        bench.device,
        t_bytes=None if on_cpu else bench.given_bytes,
        shared_card=spec.shared_card,
    )


def kill_left_over(listener: Listener) -> None:
    """Name and end workers whose search is gone."""
    strays = find_strays()
    if strays:
        kill_strays(strays)
        names = ", ".join(f"{stray.pid} {stray.name}" for stray in strays)
        listener.message(f"ended what an earlier search left: {names}")
