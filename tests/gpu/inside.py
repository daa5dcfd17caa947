"""One trial as the worker runs it, in this process and on a card or a CPU, up to what the parent makes of it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from strategies.knob import Value
from tuner.limits import limits
from tuner.measured import Parity
from tuner.nvml import list_cards
from tuner.outcome import Verdict, classify
from tuner.peak_phase import peak_of
from tuner.protocol import Attempt, Event, TrialRequest, TrialResult
from tuner.record import TrialRecord
from tuner.requests import Requests
from tuner.shapes import SHAPES
from tuner.space import canonical
from tuner.units import GIB
from tuner.worker.__main__ import run_to_end
from tuner.worker.measure import Trial
from tuner.worker.measurement import Measurement
from tuner.workload import Adapter, Lengths, ModelKind, Precision, Workload

LAYER: dict[str, Value] = {"mode": "default", "scope": "layer"}
WHOLE: dict[str, Value] = {"mode": "default", "scope": "whole"}
GRAPHS: dict[str, Value] = {"mode": "reduce-overhead", "scope": "layer"}
MODELS = Path(__file__).with_name("models.py")
HUGE = 2**50
"""A limit that nothing reaches."""


def device(name: str) -> torch.device:
    """The device of a name, with an index on a card."""
    return torch.device("cuda", 0) if name == "cuda" else torch.device("cpu")


def shaped(shape: str, tiny: bool, layers: int, tokens: int, **changes: Any) -> Workload:
    """A workload of a built-in shape with a few layers; `tiny`: hidden 64 and 32 bits, for a CPU."""
    values: dict[str, Any] = {
        "model": "tiny" if tiny else shape,
        "model_kind": ModelKind.SHAPE,
        "config": SHAPES["tiny" if tiny else shape] | {"num_hidden_layers": layers},
        "lengths": Lengths.fixed(min(tokens, 64) if tiny else tokens),
        "adapter": Adapter.LORA,
        "precision": Precision.FP32_TRUE if tiny else Precision.BF16_MIXED,
        "batch_size": 2,
    }
    return Workload(**values | changes)


def users(function: str, **changes: Any) -> Workload:
    """A workload of a model, and where asked for of a loss and batches, from `models.py` beside this file."""
    for name in ("loss", "batch_fn"):
        if name in changes:
            changes[name] = f"{MODELS}:{changes[name]}"
    values: dict[str, Any] = {"model": f"{MODELS}:{function}", "model_kind": ModelKind.FUNCTION}
    return Workload(**values | {"lengths": Lengths.fixed(16)} | changes)


@dataclass
class Ran:
    """A trial that has come to its end."""

    trial: Trial
    attempt: Attempt

    @property
    def result(self) -> TrialResult:
        """What the worker would have written."""
        assert self.attempt.result is not None
        return self.attempt.result

    def verdict(self, reference: Parity | None = None, tail: str = "", limit_bytes: int | None = None) -> Verdict:
        """What the parent decides; `tail`: what the worker's log says."""
        changes: dict[str, Any] = {"tail": tail}
        if limit_bytes is not None:
            changes["request"] = self.attempt.request.model_copy(update={"limit_bytes": limit_bytes})
        return classify(self.attempt.model_copy(update=changes), reference=reference)

    def peaks(self, name: str) -> dict[str, int | None]:
        """The peak of each phase: ``allocated_bytes``, ``reserved_bytes`` or ``device_bytes``."""
        return {str(record.phase): getattr(record, name) for record in self.result.phases}

    def peak(self) -> int:
        """The largest of all phases: reserved on a card, which nobody else's share can touch, resident on a CPU."""
        name = "reserved_bytes" if self.attempt.request.device_type == "cuda" else "device_bytes"
        return max(size or 0 for size in self.peaks(name).values())

    def step_seconds(self, phase: str) -> list[float]:
        """What each optimizer step of a phase took."""
        return [e.seconds for e in self.attempt.events if e.event == "step" and e.phase == phase and e.seconds]

    def record(self) -> TrialRecord:
        """What the parent would keep, by the allocator's figures on a card: others may be on it."""
        asked = self.attempt.request
        requests = Requests(
            study="gpu", key="gpu", workload=asked.workload, device_type=asked.device_type,
            device_uuid=asked.device_uuid, limits=limits(64 * GIB, 64 * GIB, "cuda"), deadlines={}, seed=0,
            root=Path("unused"),
        )  # fmt: skip
        verdict = self.verdict()
        return requests.record(self.attempt, verdict, role="run", source="gpu", number=None)

    def told(self) -> dict[str, Any]:
        """What JSON can hold of it."""
        result, verdict, peak = self.result, self.verdict(), peak_of(self.record(), self.attempt.request.workload)
        return {
            "outcome": str(verdict.outcome),
            "kind": verdict.kind,
            "phase": verdict.phase,
            "detail": verdict.detail,
            "flags": list(verdict.flags),
            "notes": list(result.notes),
            "phases": [record.model_dump(mode="json") for record in result.phases],
            "peak": peak.words() if peak else None,
            "memory": result.memory.model_dump(mode="json") if result.memory else None,
            "compile": result.compile.model_dump(mode="json", exclude={"plan"}),
            "throughput": result.throughput.model_dump(mode="json") if result.throughput else None,
            "optimizer_state_bytes": result.optimizer_state_bytes,
            "trainable_parameters": result.trainable_parameters,
            "settle_steps": result.settle_steps,
            "detector_seconds": result.detector_seconds,
            "snapshot": result.snapshot,
            "largest_blocks": list(result.largest_blocks),
            "replays": [str(replay) for replay in result.replays],
        }


def request(workload: Workload, device_type: str, strategy: dict[str, Value], **changes: Any) -> TrialRequest:
    """A request without a cap and with a short steady phase."""
    values: dict[str, Any] = {
        "trial_uuid": "a-trial",
        "workload": workload,
        "strategy": canonical({"micro_batch": workload.batch_size} | strategy),
        "device_type": device_type,
        "device_uuid": list_cards()[0].uuid if device_type == "cuda" else None,
        "limit_bytes": HUGE,
        "budget_bytes": HUGE,
        "cache_dir": "unused",
        "steady_steps": 3,
        "steady_micro_batches": 3,
        "steady_seconds": 0.2,
        "base_line_bytes": 0,
    }
    return TrialRequest(**values | changes)


def run(asked: TrialRequest, folder: Path | None = None) -> Ran:
    """Run a trial; what it raises becomes its failure, as in the worker's `main`.

    `folder`: where the allocator's snapshot would be kept; None: its history is not on.
    """
    events: list[Event] = []
    measurement = Measurement(request=asked, emit=events.append, phase_started=time.time())
    if folder is not None and hasattr(measurement, "folder"):
        measurement.folder = folder
    trial, started = Trial(measurement), time.time()
    result = run_to_end(trial, measurement)
    if measurement.health is not None:
        measurement.health.close()
    attempt = Attempt(
        request=asked,
        exit_code=0,
        result=result,
        events=tuple(events),
        started_at=started,
        seconds=time.time() - started,
    )
    return Ran(trial, attempt)
