"""From a strategy to a `TrialRequest`, and from an `Attempt` back to a `TrialRecord`."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from strategies.knob import COMPILE_OFF, Value
from tuner import build
from tuner.evidence import phase_device_bytes
from tuner.host import worker_threads
from tuner.kinds import Phase
from tuner.limits import DeviceType, Limits, cap
from tuner.outcome import Outcome, Verdict
from tuner.protocol import Attempt, TrialRequest, TrialResult
from tuner.record import MEASURED_UNDER, Role, TrialRecord
from tuner.space import fingerprint
from tuner.timing import mode_class
from tuner.trial_dir import TrialDir
from tuner.workload import ModelKind, Workload

CUBLAS_WORKSPACE = ":4096:2:16:8"
"""What cuBLAS takes before Hopper; on a larger card it would take more, and the cap would not be the small card's."""

COMPILERS_AT_MOST = 32
"""Processes that compile for one worker; torch's own bound."""


@dataclass(slots=True, kw_only=True)
class Requests:
    """Makes the requests of one study, and knows how much lies outside the allocator by kind of mode."""

    study: str
    key: str
    workload: Workload
    device_type: DeviceType
    device_uuid: str | None
    limits: Limits
    deadlines: dict[Phase, float]
    seed: int
    root: Path
    """Folder of all studies' trial folders."""
    cold: bool = False
    """Every trial has a compile cache of its own."""
    _outside: dict[str, int] = field(default_factory=dict)
    """Peak device less peak reserved of the first `ok`, by `mode_class`."""

    @property
    def cache_dir(self) -> Path:
        """The study's compile cache."""
        return self.root / self.study / "compile-cache"

    def folder(self, name: str) -> TrialDir:
        """Make the folder of a trial."""
        return TrialDir.create(self.root, self.study, name)

    def make(
        self,
        strategy: dict[str, Value],
        folder: TrialDir,
        cold: bool = False,
        *,
        role: Role = "search",
        workload: Workload | None = None,
        twin: dict[str, Value] | None = None,
    ) -> TrialRequest:
        """Return the request of a strategy.

        Args:
            cold: with an empty compile cache of its own.
            workload: a slice, in place of the study's own.
            twin: the strategy that its first step is compared with, in place of measuring it.
        """
        own_cache = cold or self.cold
        threads = str(worker_threads())
        compilers = str(min(COMPILERS_AT_MOST, worker_threads()))
        environment = {
            # Fixed before torch loads: dynamo guards the number of threads, and recompiles for another.
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            # Idle threads that spin beside a busy core make the same step take 50 times as long.
            "GOMP_SPINCOUNT": "0",
            "CUBLAS_WORKSPACE_CONFIG": CUBLAS_WORKSPACE,
            # Torch would start one for each core that it sees, whatever the quota of a container.
            "TORCHINDUCTOR_COMPILE_THREADS": compilers,
            # A child's tensors would lie outside the cap.
            "TORCHINDUCTOR_AUTOTUNE_IN_SUBPROC": "0",
        }
        if self.workload.model_kind is not ModelKind.HUB:
            environment["HF_HUB_OFFLINE"] = "1"
        return TrialRequest(
            trial_uuid=uuid.uuid4().hex,
            workload=workload or self.workload,
            strategy=strategy,
            twin=twin,
            device_type=self.device_type,
            device_uuid=self.device_uuid,
            limit_bytes=self.limits.limit_bytes,
            cap_bytes=self.cap_bytes(strategy),
            budget_bytes=self.limits.budget_bytes,
            emulated=self.limits.emulated,
            seed=self.seed,
            cache_dir=str((folder.path / "compile-cache" if own_cache else self.cache_dir).resolve()),
            environment=environment | build.environment(strategy),
            deadlines=self.deadlines,
            role=role,
        )

    def cap_bytes(self, strategy: dict[str, Value]) -> int | None:
        """Return what the allocator may reserve in a trial of `strategy`; None on a CPU."""
        return cap(self.limits.limit_bytes, self._outside.get(mode_class(strategy)), self.device_type)

    def learn(self, records: Iterable[TrialRecord]) -> None:
        """Take what lies outside the allocator from the first `ok` of each kind of mode."""
        for record in records:
            peaks = (record.peak_device_bytes, record.peak_reserved_bytes)
            if record.outcome is Outcome.OK and peaks[0] is not None and peaks[1] is not None:
                self._outside.setdefault(mode_class(record.strategy), peaks[0] - peaks[1])

    @property
    def outside(self) -> Mapping[str, int]:
        """What lies outside the allocator, as far as it is known, by `mode_class`: with it the caps move."""
        return self._outside

    def take_outside(self, strategy: Mapping[str, Value], outside_bytes: int) -> None:
        """Take what lies outside the allocator in `strategy`'s kind of mode from elsewhere, whatever was learned."""
        self._outside[mode_class(strategy)] = outside_bytes

    def record(
        self, attempt: Attempt, verdict: Verdict, *, role: Role, source: str, number: int | None, key: str | None = None
    ) -> TrialRecord:
        """Return what is kept of an attempt; `key`: of a slice, in place of the study's own."""
        request, result = attempt.request, _with_samples(attempt)
        phases = result.phases if result else ()
        compiled = result is not None and request.strategy["mode"] != COMPILE_OFF
        failure = result.failure if result else None
        return TrialRecord(
            uuid=request.trial_uuid,
            key=key or self.key,
            study=self.study,
            twin=request.twin,
            number=number,
            role=role,
            source=source,
            strategy=request.strategy,
            fingerprint=fingerprint(request.strategy),
            outcome=verdict.outcome,
            kind=verdict.kind,
            phase=verdict.phase,
            flags=verdict.flags,
            detail=verdict.detail,
            tokens_per_s=result.throughput.tokens_per_s if result and result.throughput else None,
            peak_device_bytes=verdict.peak_device_bytes,
            peak_reserved_bytes=max((p.reserved_bytes for p in phases if p.reserved_bytes is not None), default=None),
            peak_allocated_bytes=max(
                (p.allocated_bytes for p in phases if p.allocated_bytes is not None), default=None
            ),
            compile_seconds=result.compile.compile_seconds if result and compiled and result.throughput else None,
            budget_bytes=request.budget_bytes,
            limit_bytes=request.limit_bytes,
            cap_bytes=request.cap_bytes,
            needed_bytes=failure.needed_bytes if failure else None,
            deadlines=request.deadlines,
            seed=request.seed,
            process_environment=_measured_under(request),
            started_at=attempt.started_at,
            seconds=attempt.seconds,
            result=result,
            tail="" if verdict.outcome is Outcome.OK else attempt.tail,
        )


def _measured_under(request: TrialRequest) -> dict[str, str]:
    names = [name for name in MEASURED_UNDER if request.device_type == "cuda" or not name.startswith("CUBLAS")]
    return {name: request.environment[name] for name in names if name in request.environment}


def _with_samples(attempt: Attempt) -> TrialResult | None:
    """Return the worker's result with what the parent knows of the device in place of its own figures."""
    result = attempt.result
    if result is None:
        return None
    phases = tuple(p.model_copy(update={"device_bytes": phase_device_bytes(attempt, p)}) for p in result.phases)
    return result.model_copy(update={"phases": phases})
