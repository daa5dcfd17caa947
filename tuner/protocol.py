"""What the parent and a worker say to each other, as JSON with a schema version.

The parent writes one `TrialRequest`; the worker writes one `Event` line for each phase it enters
and each step, and one `TrialResult`. Nothing else passes between them but an exit status.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from strategies.knob import Value
from tuner.kinds import FailureClass, Flag, KillReason, Kind, Phase, Replay
from tuner.measured import CompileReport, MemoryLedger, Parity, PhaseRecord, Throughput
from tuner.workload import Frozen, Workload


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
    replay: Replay | None = None
    """What `longest_batch` was replaying."""


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
    twin: dict[str, Value] | None = None
    """Instead of measuring: compare loss and gradient of the first step with this strategy's, in one process."""
    memory_snapshot: bool = False
    """Keep the allocator's snapshot of a step after `settle`; of an out-of-memory it is kept always."""


class Event(Frozen):
    """One line of ``events.jsonl``."""

    time: float
    """Unix time."""
    event: Literal["phase", "step", "note", "measured"]
    """`measured`: the last phase has ended; what the worker still does is no part of it."""
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
    memory: MemoryLedger | None = None
    twin_parity: Parity | None = None
    """Of a twin test: the other strategy's."""
    detector_seconds: dict[str, float] = Field(default_factory=dict)
    """What each detector cost this trial, by name; none runs in `steady`."""
    snapshot: str | None = None
    """File name of the allocator's snapshot in the trial's folder."""
    largest_blocks: tuple[str, ...] = ()
    """The ten largest live blocks of that snapshot, in words."""
    replays: tuple[Replay, ...] = ()
    """What `longest_batch` replayed to its end."""
    peak_replay: Replay | None = None
    """The one that set the peak of `longest_batch`; None: none rose above what was held before."""
    layers: int | None = None
    applied: tuple[str, ...] = ()
    """What was put on the model, in sentences (`Applied.done`)."""
    notes: tuple[str, ...] = ()
    flags: tuple[Flag, ...] = ()
    no_effect: dict[str, str] = Field(default_factory=dict)
    """Knobs that changed nothing, each with one sentence of evidence."""
    versions: dict[str, str] = Field(default_factory=dict)
    threads: int | None = None
    settle_steps: int = 0
    model_seconds: float | None = None
    """From exec to the model being on the device."""
    failure: Failure | None = None


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
