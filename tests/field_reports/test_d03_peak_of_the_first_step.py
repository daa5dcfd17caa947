"""D3: a peak that belongs to compiling decides whether it fits, and what is scored is steady. The CPU part."""

from __future__ import annotations

import pytest

from tests.field_reports.running import LAYER, run, users
from tests.tuner.trials import attempt, request, result
from tuner.kinds import FailureClass, Flag, Phase
from tuner.measured import CompileReport, PhaseRecord
from tuner.outcome import Outcome, classify
from tuner.protocol import Failure
from tuner.units import GIB

GOOD = CompileReport(graphs=2, chosen_modules=4, compiled_modules=4, compile_seconds=20.0)


@pytest.mark.parametrize("phase", [Phase.LOAD, Phase.FIRST_STEP, Phase.SETTLE, Phase.STEADY, Phase.LONGEST_BATCH])
def test_the_largest_peak_of_all_phases_decides_and_is_named(phase: Phase) -> None:
    peaks = dict.fromkeys(Phase, GIB // 2) | {phase: 2 * GIB}
    phases = tuple(PhaseRecord(phase=p, seconds=1.0, device_bytes=size) for p, size in peaks.items())
    measured = result("a", phases=phases, compile=GOOD)
    verdict = classify(attempt(request(strategy={"mode": "default", "scope": "layer"}), result=measured))
    assert (verdict.outcome, verdict.phase, verdict.peak_device_bytes) == (Outcome.OVER_BUDGET, phase, 2 * GIB)


@pytest.mark.parametrize("phase", [Phase.LOAD, Phase.FIRST_STEP, Phase.STEADY])
def test_an_out_of_memory_has_its_phase(phase: Phase) -> None:
    failure = Failure(failure_class=FailureClass.OOM, phase=phase, type="torch.OutOfMemoryError", detail="2 GiB more")
    verdict = classify(attempt(result=result("a", throughput=None, failure=failure)))
    assert (verdict.outcome, verdict.phase) == (Outcome.OOM, phase)


@pytest.mark.usefixtures("quick_compile")
def test_time_and_peak_are_kept_by_phase_and_the_cache_s_state_is_said() -> None:
    found = run(users("plain"), **LAYER)
    phases = {record.phase: record for record in found.result.phases}
    assert list(phases) == [Phase.START, Phase.LOAD, Phase.FIRST_STEP, Phase.SETTLE, Phase.STEADY]
    assert all(record.device_bytes and record.seconds >= 0 for record in phases.values())
    assert Flag.COLD in found.result.flags and Flag.WARM not in found.result.flags
