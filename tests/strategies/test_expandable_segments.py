from __future__ import annotations

from typing import Any

from strategies.expandable_segments import KNOB
from strategies.knob import Severity, Stage, Target


def test_pointless_on_a_cpu_alone(conflict: Any, full: Any, cpu: Target, cuda: Any) -> None:
    assert conflict(KNOB, full(expandable_segments=True), cpu).severity is Severity.POINTLESS
    assert KNOB.conflict(full(expandable_segments=True), cuda()) is None


def test_apply_sets_the_variable_before_torch_loads(build: Any) -> None:
    assert KNOB.stage is Stage.PROCESS
    KNOB.apply(build, False)
    assert build.environment == {}
    KNOB.apply(build, True)
    assert build.environment == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
