"""The worker: one strategy, one process. ``python -m tuner.worker TRIAL_DIR``."""

from __future__ import annotations

from tuner.parent_pipe import watch_parent

watch_parent()  # before anything heavy: from here on this process dies with its parent

import os  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from importlib import metadata  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import TYPE_CHECKING  # noqa: E402

from tuner.kinds import FailureClass, Flag, Phase  # noqa: E402
from tuner.measured import CompileReport  # noqa: E402
from tuner.protocol import Event, TrialResult  # noqa: E402
from tuner.trial_dir import TrialDir  # noqa: E402

if TYPE_CHECKING:
    from tuner.protocol import Failure, TrialRequest
    from tuner.worker.measure import Trial
    from tuner.worker.measurement import Measurement
    from tuner.worker.twin import TwinTest

_PACKAGES = ("torch", "transformers", "peft", "bitsandbytes", "triton")


def main(path: str) -> int:
    """Run the trial of a folder; the exit status is 0 wherever a result was written."""
    trial_dir = TrialDir(Path(path))
    request = trial_dir.read_request()
    started = _process_start()
    trial_dir.append_event(Event(time=started, event="phase", phase=Phase.START))

    from tuner.worker.measure import Trial
    from tuner.worker.measurement import Measurement
    from tuner.worker.twin import TwinTest

    measurement = Measurement(
        request=request, emit=trial_dir.append_event, phase_started=started, folder=trial_dir.path
    )
    trial = Trial(measurement) if request.twin is None else TwinTest(measurement)
    trial_dir.write_result(run_to_end(trial, measurement))
    sys.stdout.flush()
    sys.stderr.flush()
    # Interpreter shutdown frees CUDA graphs and pools one by one, for seconds; the result is safe already.
    os._exit(0)


def run_to_end(trial: Trial | TwinTest, measurement: Measurement) -> TrialResult:
    """Run a trial or a twin test; what it raises becomes the failure of its result."""
    from tuner.worker.ended import failure_of

    failure: Failure | None = None
    try:
        trial.run()
    except Exception as error:  # one of the two entries: whatever it is, the parent is told
        failure = failure_of(error, measurement)
        # One line: the traceback is in the result, and would push out of the log's end what was said before.
        print(f"{failure.type}: {failure.detail}", file=sys.stderr, flush=True)
        trial.end_failed_phase()
    return make_result(measurement.request, measurement, failure)


def make_result(request: TrialRequest, m: Measurement, failure: Failure | None) -> TrialResult:
    """Return all that was measured, whether the trial came to its end or not."""
    import torch

    from tuner.worker.effect import no_effect
    from tuner.worker.inventory import state_bytes

    applied = m.applied
    snapshot, blocks = _snapshot(m, failure)
    without = no_effect(m, whole=failure is None)
    params = list(applied.model.parameters()) if applied else []
    return TrialResult(
        trial_uuid=request.trial_uuid,
        phases=tuple(m.phases),
        throughput=None if failure else m.throughput,
        compile=_compile_report(m),
        parity=m.parity,
        twin_parity=m.twin_parity,
        micro_batch=applied.micro_batch if applied else 1,
        accumulation=applied.accumulation if applied else 1,
        parameters=sum(p.numel() for p in params) or None,
        trainable_parameters=sum(p.numel() for p in params if p.requires_grad) or None,
        optimizer_state_bytes=state_bytes(applied.optimizer) if applied else None,
        memory=m.memory,
        snapshot=snapshot,
        largest_blocks=blocks,
        replays=tuple(m.replays),
        peak_replay=m.peak_replay,
        layers=_layers(m),
        applied=applied.done if applied else (),
        notes=(*m.notes, *without.values(), *(applied.unapplied if applied else ())),
        flags=tuple(dict.fromkeys([*m.flags, *_cache_flags(m), *([Flag.NO_EFFECT] if without else [])])),
        no_effect=without,
        versions=_versions(),
        threads=torch.get_num_threads(),
        settle_steps=m.settle_steps,
        model_seconds=m.model_seconds,
        detector_seconds=m.detector_seconds,
        failure=failure,
    )


def _compile_report(m: Measurement) -> CompileReport:
    from tuner.worker.compile_time import compile_parts

    if m.health is None or not m.compiles:
        return CompileReport()
    with m.detecting("compile_parts"):
        parts = compile_parts()
    return m.health.report(m.compile_seconds).model_copy(update={"parts": parts})


def _snapshot(m: Measurement, failure: Failure | None) -> tuple[str | None, tuple[str, ...]]:
    if m.history is None:
        return None, ()
    if m.history.seconds:
        m.detector_seconds["memory_snapshot"] = m.history.seconds
    if m.history.problem is not None:
        m.notes.append(f"the allocator's snapshot could not be kept ({m.history.problem})")
    return m.history.result(failure is not None and failure.failure_class is FailureClass.OOM)


def _layers(m: Measurement) -> int | None:
    from tuner.build import BuildConflict, decoder_layers

    if m.applied is None:
        return None
    try:
        return len(decoder_layers(m.applied.model))
    except BuildConflict:
        return None


def _cache_flags(m: Measurement) -> list[Flag]:
    """Was anything of this strategy found in the compile cache?"""
    if not m.compiles:
        return []
    from torch._dynamo.utils import counters

    hits = counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
    return [Flag.WARM if hits else Flag.COLD]


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _process_start() -> float:
    """Return the Unix time at which this process was started, to a hundredth of a second."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[19])
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
