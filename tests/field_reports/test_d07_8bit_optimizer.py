"""D7: an 8-bit optimizer that saves nothing."""

from __future__ import annotations

from strategies.knob import Severity, Target
from strategies.optimizer import KNOB as OPTIMIZER
from tests.field_reports.running import Ran, run, users
from tuner.kinds import Flag
from tuner.outcome import Outcome
from tuner.space import canonical


def both(function: str) -> tuple[Ran, Ran, float]:
    """The plain optimizer's run, the 8-bit one's, and the latter's share of the former's state."""
    plain, packed = run(users(function)), run(users(function), optimizer="adamw-8bit")
    sizes = [found.result.optimizer_state_bytes for found in (plain, packed)]
    assert sizes[0] and sizes[1]
    return plain, packed, sizes[1] / sizes[0]


def test_small_tensors_gain_nothing_and_it_is_said() -> None:
    plain, packed, share = both("small_tensors")
    assert share > 0.95
    assert packed.verdict(plain.result.parity).outcome is Outcome.OK
    assert Flag.NO_EFFECT in packed.result.flags and Flag.NO_EFFECT not in plain.result.flags
    assert "optimizer: no tensor is large enough for 8-bit state" in packed.result.notes


def test_large_tensors_gain_much() -> None:
    plain, packed, share = both("large_tensors")
    assert share < 0.4
    assert packed.verdict(plain.result.parity).outcome is Outcome.OK
    assert Flag.NO_EFFECT not in packed.result.flags


def test_under_adapters_it_is_not_tried() -> None:
    target = Target(device_type="cpu", batch_size=8, adapter="lora", precision="32-true")
    conflict = OPTIMIZER.conflict(canonical({"optimizer": "adamw-8bit"}), target)
    assert conflict is not None and conflict.severity is Severity.POINTLESS and "lora" in conflict.reason
