"""D3: a peak that belongs to compiling decides whether it fits, and what is scored is steady. The CPU part."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.field_reports.running import LAYER, run, users
from tests.tuner.made import record_of
from tests.tuner.trials import attempt, request, result
from tuner.break_even import CompileTimes
from tuner.kinds import FailureClass, Flag, Phase
from tuner.measured import CompileReport, PhaseRecord
from tuner.outcome import Outcome, classify
from tuner.protocol import Failure, TrialResult
from tuner.record import TrialRecord
from tuner.speed_words import compile_words
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


def test_a_kept_cache_is_told_apart_from_a_fresh_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    cold, warm = run(users("plain"), **LAYER).result, run(users("plain"), **LAYER).result
    assert Flag.COLD in cold.flags and Flag.WARM in warm.flags
    assert warm.compile.compile_seconds < cold.compile.compile_seconds
    parts = cold.compile.parts
    assert parts is not None and parts.dynamo > 0 and parts.triton > 0 and parts.autotuning == parts.graph_capture == 0
    assert parts.dynamo + parts.aot_autograd + parts.inductor + parts.triton <= cold.compile.compile_seconds * 1.1
    assert cold.throughput is not None and warm.throughput is not None
    ratio = warm.throughput.step_seconds / cold.throughput.step_seconds
    assert 1 / 3 < ratio < 3, "compiling is in no step, and two cores are shared"
    words = compile_words(CompileTimes(cold=kept(cold), warm=kept(warm)), "cpu")
    assert re.fullmatch(r"compile \S+ s cold \(.*C\+\+ compiler \S+\), \S+ s warm", words)


def kept(measured: TrialResult) -> TrialRecord:
    """A record of it."""
    return record_of(strategy=LAYER, result=measured, compile_seconds=measured.compile.compile_seconds)
