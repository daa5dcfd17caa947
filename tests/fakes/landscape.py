"""What strategies come to in tests: a small deterministic formula, roughly shaped like the real thing."""

from __future__ import annotations

from typing import Any

MIB = 2**20
BASE = 100 * MIB
"""Model and gradients: what `load` takes."""
STATE = {"adamw": 50 * MIB, "adamw-8bit": 15 * MIB, "adamw-8bit-paged": 15 * MIB}
_SEQUENCE = 100 * MIB
_KEPT = {"off": 1.0, "every-second-block": 0.65, "every-block": 0.3}
_CHECKPOINTED = {"off": 1.0, "every-second-block": 0.87, "every-block": 0.75}
COMPILE_SECONDS = 60.0
_SCOPE = {"whole": 1.2, "layer": 1.35, "attention": 1.1, "mlp": 1.15}


def parity() -> dict[str, Any]:
    """Loss and gradient of the first step."""
    return {
        "loss": 2.0,
        "gradient": [3.0, 4.0],
        "gradient_norm": 5.0,
        "tensors_without_gradient": 0,
        "parameter_changed": True,
    }


def speed(strategy: dict[str, Any]) -> float:
    """Tokens per second."""
    micro_batch: int = strategy["micro_batch"]
    found = 1000.0 * _CHECKPOINTED[strategy["checkpointing"]] * (1 + 0.02 * micro_batch)
    if strategy["mode"] != "off":
        found *= _SCOPE[strategy["scope"]] * (0.9 + 0.1 * strategy["activation_memory_budget"])
        found *= 1.1 if strategy["mode"] == "reduce-overhead" else 1.0
    return found * (0.97 if strategy["optimizer"] != "adamw" else 1.0)


def peak(strategy: dict[str, Any]) -> int:
    """Bytes of the first step, which takes most."""
    kept = _KEPT[strategy["checkpointing"]] * strategy["micro_batch"]
    if strategy["mode"] != "off":
        kept *= 0.8 * (0.5 + 0.5 * strategy["activation_memory_budget"])
    return int(BASE + STATE[strategy["optimizer"]] + kept * _SEQUENCE)


def result(
    strategy: dict[str, Any], limit_bytes: int, scale: float = 1.0, failure: tuple[str, str] | None = None
) -> dict[str, Any]:
    """The fields of a `TrialResult`, its identity apart, as JSON.

    `failure`: class and phase of what is to happen; memory alone decides where None.
    """
    phases = [_phase("load", BASE)]
    if failure is None and limit_bytes < BASE:
        return {"failure": _failure("oom", "load", BASE)}
    if failure is None and limit_bytes < peak(strategy):
        failure = ("oom", "first_step")
    if failure is not None:
        return {"phases": phases, "failure": _failure(*failure, peak(strategy))}
    phases += [_phase("first_step", peak(strategy)), _phase("settle", peak(strategy) - MIB)]
    phases += [_phase("steady", peak(strategy) - MIB)]
    compiled = strategy["mode"] != "off"
    seconds = 1000 / (speed(strategy) * scale)
    return {
        "phases": phases,
        "throughput": {
            "tokens_per_s": speed(strategy) * scale,
            "step_seconds": seconds,
            "step_seconds_p10": seconds,
            "step_seconds_p90": seconds,
            "steps": 5,
            "tokens_per_step": 1000.0,
        },
        "compile": {
            "graphs": 1,
            "chosen_modules": 2,
            "compiled_modules": 2,
            "compile_seconds": COMPILE_SECONDS,
        }
        if compiled
        else {},
        "parity": parity(),
        "micro_batch": strategy["micro_batch"],
    }


def _phase(name: str, size: int) -> dict[str, Any]:
    return {"phase": name, "seconds": 0.1, "device_bytes": size}


def _failure(failure_class: str, phase: str, needed: int) -> dict[str, Any]:
    memory = {"needed_bytes": needed} if failure_class == "oom" else {}
    return {
        "failure_class": failure_class,
        "phase": phase,
        "type": "fake.Error",
        "detail": f"made to end as {failure_class}",
        **memory,
    }
