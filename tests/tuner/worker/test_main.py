"""The worker as a process: what it leaves in its trial's folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch._inductor.cudagraph_utils import log_cudagraph_skip_and_bump_counter

from tests.tuner.worker.workloads import MODELS, measurement, shaped, users
from tuner.evidence import compile_fault
from tuner.kinds import FailureClass, Flag, Kind, Phase
from tuner.protocol import TrialResult
from tuner.trial_dir import TrialDir
from tuner.worker.__main__ import main, make_result
from tuner.worker.measure import Trial
from tuner.workload import Workload

ROOT = MODELS.parents[2]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compile-cache")


def work(folder: Path, cache: Path, workload: Workload, **strategy: Any) -> tuple[TrialDir, TrialResult]:
    """Run one real worker to its end."""
    trial_dir = TrialDir.create(folder, "study", "0")
    trial_dir.write_request(measurement(workload, **strategy).request)
    environment = os.environ | {
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [sys.executable, "-m", "tuner.worker", str(trial_dir.path)]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stderr[-2000:]
    result = trial_dir.read_result("a-trial")
    assert isinstance(result, TrialResult), result
    return trial_dir, result


def test_an_eager_trial(tmp_path: Path, cache: Path) -> None:
    trial_dir, result = work(tmp_path, cache, shaped(), micro_batch=2)
    assert result.failure is None and result.throughput is not None and result.parity is not None
    assert [r.phase for r in result.phases] == [
        Phase.START,
        Phase.LOAD,
        Phase.FIRST_STEP,
        Phase.SETTLE,
        Phase.STEADY,
    ]
    assert all(r.device_bytes and r.device_bytes > 100 * 2**20 for r in result.phases)
    assert all(r.seconds > 0 and r.allocated_bytes is None and r.reserved_bytes is None for r in result.phases)
    assert (result.micro_batch, result.accumulation, result.layers, result.threads) == (2, 4, 2, 1)
    assert result.parameters == result.trainable_parameters and (result.parameters or 0) > 1000
    assert result.optimizer_state_bytes is not None
    assert result.optimizer_state_bytes >= 2 * 4 * (result.parameters or 0)  # two fp32 states each
    assert result.model_seconds is not None and result.model_seconds > result.phases[0].seconds
    assert {"torch", "transformers"} <= result.versions.keys()
    assert result.settle_steps >= 3 and result.compile.graphs == 0
    events = trial_dir.read_events().events
    assert [e.phase for e in events if e.event == "phase"] == [r.phase for r in result.phases]
    assert [e.time for e in events] == sorted(e.time for e in events)


def test_a_compiled_trial(tmp_path: Path, cache: Path) -> None:
    """The one real compile of these tests, of two small layers that share their code."""
    strategy = {"mode": "default", "scope": "layer", "checkpointing": "every-block", "micro_batch": 8}
    _, result = work(tmp_path, cache, users(), **strategy)
    assert result.failure is None and result.throughput is not None
    assert (result.compile.chosen_modules, result.compile.compiled_modules) == (2, 2)
    assert result.compile.eager_ops == 0 and (result.compile.compiled_ops or 0) >= 4
    assert compile_fault(result.compile) is None
    assert result.compile.graph_breaks == () and not result.compile.recompile_limit_hit
    first_step = next(r.seconds for r in result.phases if r.phase is Phase.FIRST_STEP)
    assert first_step / 2 < result.compile.compile_seconds < first_step + 5
    assert Flag.COLD in result.flags
    assert any("compiled 2 modules in place" in sentence for sentence in result.applied)


def test_a_model_function_that_raises(tmp_path: Path, cache: Path) -> None:
    trial_dir, result = work(tmp_path, cache, users("raises"))
    failure = result.failure
    assert failure is not None and result.throughput is None
    assert (failure.failure_class, failure.phase) == (FailureClass.USER_CODE, Phase.LOAD)
    assert failure.detail == f"{MODELS}:raises raised KeyError: 'no such\\nkey'"
    assert "in raises" in failure.traceback
    assert [r.phase for r in result.phases] == [Phase.START, Phase.LOAD]
    assert trial_dir.read_events().events[-1].phase is Phase.LOAD


def test_a_failure_keeps_what_was_measured_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial_dir = TrialDir.create(tmp_path, "study", "0")
    trial_dir.write_request(measurement(users("not_a_number")).request)
    statuses: list[int] = []
    monkeypatch.setattr(os, "_exit", statuses.append)
    main(str(trial_dir.path))
    result = trial_dir.read_result("a-trial")
    assert statuses == [0]
    assert isinstance(result, TrialResult) and result.failure is not None
    assert (result.failure.failure_class, result.failure.kind) == (FailureClass.WRONG_RESULT, Kind.NAN)
    assert (result.failure.phase, result.failure.step) == (Phase.FIRST_STEP, 1)
    # The phase that failed is there too: how far memory came is what a person asks of an out-of-memory.
    assert [r.phase for r in result.phases] == [Phase.START, Phase.LOAD, Phase.FIRST_STEP]
    assert result.phases[-1].device_bytes
    assert result.parity is not None and result.parameters


@pytest.mark.parametrize(("width", "flags"), [(16, [Flag.NO_EFFECT]), (64, [])])
def test_an_8_bit_optimizer_without_a_large_tensor_has_no_effect(width: int, flags: list[Flag]) -> None:
    made = measurement(shaped(config={"hidden_size": width, "intermediate_size": 2 * width}), optimizer="adamw-8bit")
    Trial(made).run()
    result = make_result(made.request, made, None)
    assert [f for f in result.flags if f is Flag.NO_EFFECT] == flags
    assert any("optimizer" in note for note in result.notes) is bool(flags)


@pytest.mark.parametrize(("recorded", "flags"), [(0, [Flag.NO_EFFECT]), (2, [])])
def test_a_mode_of_graphs_that_recorded_none_has_no_effect(
    monkeypatch: pytest.MonkeyPatch, recorded: int, flags: list[Flag]
) -> None:
    made = measurement(shaped(), mode="reduce-overhead", scope="layer")
    Trial(made).load()
    assert made.applied is not None and made.health is not None
    made.applied.records_graphs = True  # as on a card
    log_cudagraph_skip_and_bump_counter("skipping cudagraphs due to mutated inputs")
    monkeypatch.setattr("tuner.worker.health._recorded_graphs", lambda: recorded)
    result = make_result(made.request, made, None)
    made.health.close()
    assert [f for f in result.flags if f is Flag.NO_EFFECT] == flags
    said = "mode: reduce-overhead recorded no CUDA graph (skipping cudagraphs due to mutated inputs)"
    assert (said in result.notes) is bool(flags)
    assert result.compile.cudagraph_skips == 1
