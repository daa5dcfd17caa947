"""D7: an 8-bit optimizer that saves nothing."""

from __future__ import annotations

from strategies.knob import Severity, Target
from strategies.optimizer import KNOB as OPTIMIZER
from tests.field_reports.running import Ran, run, users
from tests.tuner.searching import Bench, End, bench
from tuner.kinds import Flag
from tuner.outcome import Outcome
from tuner.protocol import TrialRequest
from tuner.space import canonical

__all__ = ["bench"]
SMALL = "optimizer: no tensor is large enough for 8-bit state"


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
    assert packed.result.no_effect == {"optimizer": SMALL} and plain.result.no_effect == {}
    assert packed.verdict(plain.result.parity).detail == SMALL


def test_large_tensors_gain_much() -> None:
    plain, packed, share = both("large_tensors")
    assert share < 0.4
    assert packed.verdict(plain.result.parity).outcome is Outcome.OK
    assert Flag.NO_EFFECT not in packed.result.flags


def test_under_adapters_it_is_not_tried() -> None:
    target = Target(device_type="cpu", batch_size=8, adapter="lora", precision="32-true")
    conflict = OPTIMIZER.conflict(canonical({"optimizer": "adamw-8bit"}), target)
    assert conflict is not None and conflict.severity is Severity.POINTLESS and "lora" in conflict.reason


def test_what_had_no_effect_is_not_tried_again(bench: Bench) -> None:
    def answer(request: TrialRequest, _: bool) -> End | None:
        packed = str(request.strategy["optimizer"]).startswith("adamw-8bit")
        return End(seconds=2.0, result={"no_effect": {"optimizer": SMALL}} if packed else {})

    found = bench.run(answer, trials=40, adapter="full", time_budget="2h")
    packed = [r for r in found.heard.records if str(r.strategy["optimizer"]).startswith("adamw-8bit")]
    # The leanest recipes come before the sampler, whatever is known: nothing else says that nothing fits.
    assert [r.source.partition(":")[0] for r in packed if r.role == "search"].count("sampler") <= 1
    assert len(found.heard.records) > 30 and len([m for m in found.heard.messages if "8-bit" in m]) == 1
