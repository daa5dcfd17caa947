"""What the parent and a worker say to each other, as JSON with a schema version.

The parent writes one `TrialRequest`; the worker writes one `Event` line for each phase it enters
and each step, and one `TrialResult`. Nothing else passes between them but an exit status.
"""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from strategies.knob import Value
from tuner.workload import Frozen, Workload

PROTOCOL_VERSION = 1
"""Raised when a figure changes its meaning: older records then decide nothing."""


class Phase(StrEnum):
    """An interval of measuring, in this order."""

    START = "start"
    """From exec to the first byte of the model."""
    LOAD = "load"
    WARMUP_BATCH = "warmup_batch"
    """Only where the strategy has one."""
    FIRST_STEP = "first_step"
    SETTLE = "settle"
    STEADY = "steady"
    LONGEST_BATCH = "longest_batch"
    """Only where lengths vary, or the workload has a partial last batch or an evaluation."""


class Kind(StrEnum):
    """The finer cause within an outcome."""

    RECOMPILE_LIMIT = "recompile_limit"
    NO_GRADIENT = "no_gradient"
    NAN = "nan"
    NUMERICS = "numerics"
    CHECKPOINT_MISMATCH = "checkpoint_mismatch"
    SUSPECTED = "suspected"
    UNSUPPORTED_BY_MODEL = "unsupported_by_model"


class Flag(StrEnum):
    """A remark beside an outcome."""

    TIGHT = "tight"
    """The allocator had to flush and retry in `steady`."""
    NOISY = "noisy"
    """Step times never levelled."""
    NO_EFFECT = "no_effect"
    """A knob changed nothing; the detail names it."""
    EMULATED = "emulated"
    """Measured on a larger card under the cap."""
    UNCHECKED = "unchecked"
    """Loss and gradients were not compared with a reference's."""
    SHARED_CARD = "shared_card"
    COLD = "cold"
    """The compile cache was empty when the worker started."""
    WARM = "warm"


class FailureClass(StrEnum):
    """What kind of exception ended a worker, decided by its type in ``worker/failure.py``."""

    OOM = "oom"
    GRAPH_BREAK = "graph_break"
    COMPILE_ERROR = "compile_error"
    COMPILE_NOT_APPLIED = "compile_not_applied"
    WRONG_RESULT = "wrong_result"
    UNSTABLE = "unstable"
    CONFLICT = "conflict"
    USER_CODE = "user_code"
    """The user's own model, loss or batch function raised: wrong input, no trial's outcome."""
    OTHER = "other"


class Failure(Frozen):
    """Why a worker ended early, as it saw it itself."""

    failure_class: FailureClass
    kind: Kind | None = None
    phase: Phase
    type: str
    """The exception's qualified type name."""
    detail: str
    """One sentence of cause."""
    traceback: str = ""
    step: int | None = None
    """The optimizer step of the phase, from 1."""
    needed_bytes: int | None = None
    """Of an out-of-memory: allocated plus the refused request, a lower bound of the need."""


class PhaseRecord(Frozen):
    """The peaks of one phase. On a CPU allocated and reserved are None."""

    phase: Phase
    seconds: float
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    device_bytes: int | None = None
    """Most memory of the device that this process took, as sampled by the parent (RSS on a CPU)."""
    alloc_retries: int = 0
    steps: int = 0


class GraphBreak(Frozen):
    """One site at which dynamo broke the graph."""

    site: str
    """``file:line``."""
    reason: str
    count: int


class CompileReport(Frozen):
    """What was really compiled."""

    graphs: int = 0
    """Graphs that dynamo produced."""
    chosen_modules: int = 0
    """Modules that the scope names."""
    compiled_modules: int = 0
    """Of these, the ones whose calls entered a compiled region."""
    eager_ops: int = 0
    """Matrix products and attentions outside compiled regions in one forward of the chosen modules."""
    graph_breaks: tuple[GraphBreak, ...] = ()
    recompiles: tuple[str, ...] = ()
    """The guard that failed, for each recompile."""
    recompile_limit_hit: bool = False
    compile_seconds: float = 0.0
    cudagraph_skips: int = 0
    plan: dict[str, Any] | None = None
    """What the partitioner chose: saved bytes, edges; None: not compiled, or a cache hit."""


class Parity(Frozen):
    """Loss and a fixed sample of the gradient of the first full batch, before any optimizer step."""

    loss: float
    gradient: tuple[float, ...]
    """A fixed sample of elements of the trainable tensors' total gradient, fp32."""
    gradient_sizes: tuple[int, ...] = ()
    """How many of these elements belong to each sampled tensor, in order."""
    gradient_norm: float
    """Of the whole gradient."""
    tensors_without_gradient: int
    parameter_changed: bool
    """Did a sampled trainable parameter change in the first optimizer step?"""
    with_dropout: bool = False
    """Dropout was on: masks differ from strategy to strategy, so that nothing can be compared."""


class Throughput(Frozen):
    """The steady phase, compile time never in it."""

    tokens_per_s: float
    """Trained (non-padding) tokens per second, optimizer step and accumulation included."""
    step_seconds: float
    """Median of the optimizer steps."""
    step_seconds_p10: float
    step_seconds_p90: float
    steps: int
    tokens_per_step: float


class TrialRequest(Frozen):
    """All that a worker is told."""

    schema_version: Literal[1] = 1
    trial_uuid: str
    workload: Workload
    strategy: dict[str, Value]
    """One value for each knob, canonical."""
    device_type: Literal["cuda", "cpu"]
    device_uuid: str | None = None
    """The card's UUID; CUDA_VISIBLE_DEVICES of the worker."""
    limit_bytes: int
    """What peak device may reach."""
    cap_bytes: int | None = None
    """What the allocator may reserve; None on a CPU."""
    budget_bytes: int
    emulated: bool = False
    seed: int = 0
    cache_dir: str
    """TORCHINDUCTOR_CACHE_DIR; the study's, or the trial's own."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables set before torch is imported: PROCESS knobs, threads, caches."""
    deadlines: dict[Phase, float] = Field(default_factory=dict)
    """Seconds that each phase may take."""
    base_line_bytes: int | None = None
    """On a card: what others held when the worker was launched, as CUDA counts (total less free)."""
    role: str = "search"
    """Why it is launched, as in `TrialRecord.role`."""
    steady_steps: int = 5
    steady_micro_batches: int = 20
    steady_seconds: float = 3.0
    """The steady phase lasts until all three are reached."""


class Event(Frozen):
    """One line of ``events.jsonl``."""

    time: float
    """Unix time."""
    event: Literal["phase", "step", "note"]
    phase: Phase
    step: int | None = None
    seconds: float | None = None
    """Of the step."""
    note: str | None = None
    """What is being compiled, quantised or loaded."""


class TrialResult(Frozen):
    """All that a worker measured; written once, whether it failed or not."""

    schema_version: Literal[1] = 1
    trial_uuid: str
    phases: tuple[PhaseRecord, ...] = ()
    throughput: Throughput | None = None
    compile: CompileReport = CompileReport()
    parity: Parity | None = None
    micro_batch: int = 1
    accumulation: int = 1
    parameters: int | None = None
    trainable_parameters: int | None = None
    optimizer_state_bytes: int | None = None
    layers: int | None = None
    applied: tuple[str, ...] = ()
    """What was put on the model, in sentences (`Applied.done`)."""
    notes: tuple[str, ...] = ()
    flags: tuple[Flag, ...] = ()
    versions: dict[str, str] = Field(default_factory=dict)
    threads: int | None = None
    settle_steps: int = 0
    model_seconds: float | None = None
    """From exec to the model being on the device."""
    failure: Failure | None = None


class Environment(Frozen):
    """What a record depends on besides workload and strategy."""

    device_name: str
    """The card's name, or the processor's."""
    device_type: Literal["cuda", "cpu"]
    device_total_bytes: int
    driver: str | None = None
    versions: dict[str, str]
    """Of torch, transformers, peft and bitsandbytes."""
    threads: int | None = None
    """Of a worker, on a CPU, where the speed depends on them; None on a card, and in records from before."""

    def key(self, workload: Workload) -> str:
        """Return the key under which records of `workload` in this environment are comparable."""
        parts: dict[str, Any] = {
            "workload": workload.digest(),
            "device": self.device_name,
            "device_type": self.device_type,
            "versions": {n: self.versions.get(n) for n in ("torch", "transformers", "peft", "bitsandbytes")},
            "protocol": PROTOCOL_VERSION,
        }
        if self.device_type == "cpu" and self.threads is not None:
            parts["threads"] = self.threads
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


class KillReason(StrEnum):
    """Why the parent killed a worker."""

    DEADLINE = "deadline"
    """A phase took longer than it may."""
    MEMORY = "memory"
    """On a CPU: resident memory went past the limit."""
    HOST_MEMORY = "host_memory"
    """On a CPU: worker and compilers together went past what the machine has."""
    FOREIGN = "foreign"
    """Memory of another process appeared on the device."""
    CANCELLED = "cancelled"
    """The study ended, or the user stopped it."""


class Attempt(Frozen):
    """All that the parent knows about one worker process after it is gone."""

    request: TrialRequest
    exit_code: int | None = None
    """None where a signal ended it, or where it was never launched."""
    exit_signal: int | None = None
    kill_reason: KillReason | None = None
    result: TrialResult | None = None
    result_error: str | None = None
    """Why ``result.json`` could not be read, where it exists."""
    events: tuple[Event, ...] = ()
    tail: str = ""
    """The last lines of ``worker.log``."""
    started_at: float
    """Unix time of the launch."""
    seconds: float
    """From launch to the last process reaped."""
    device_peaks: dict[Phase, int] = Field(default_factory=dict)
    """Peak device bytes by phase, sampled by the parent every 20 ms (RSS on a CPU)."""
    compilers_peak_bytes: int | None = None
    """On a CPU: the most that child processes of the worker held."""
    foreign: str | None = None
    """Who else was on the device, where that ended or prevented the trial."""
    strays: tuple[str, ...] = ()
    """Processes that the worker left and that were killed."""
    shared_card: bool = False
    """Others were on the card from the start, and the user accepted it."""
