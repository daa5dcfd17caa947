"""From a strategy to what a worker is told, and from what came of it to a record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tuner.made import WORKLOAD, record_of
from tests.tuner.trials import attempt, result
from tuner import requests as making
from tuner.host import worker_threads
from tuner.kinds import FailureClass, Phase
from tuner.limits import limits
from tuner.measured import CompileReport, PhaseRecord
from tuner.outcome import Outcome, Verdict, classify
from tuner.protocol import Failure
from tuner.requests import CUBLAS_WORKSPACE, Requests
from tuner.space import canonical, fingerprint
from tuner.units import GIB
from tuner.workload import ModelKind

BASELINE = canonical({})
LAYER = canonical({"mode": "default", "scope": "layer"})
GRAPHS = canonical({"mode": "reduce-overhead", "scope": "layer"})


def requests(root: Path, **changes: Any) -> Requests:
    usual: dict[str, Any] = {
        "study": "s",
        "key": "key",
        "workload": WORKLOAD,
        "device_type": "cuda",
        "device_uuid": "GPU-1",
        "limits": limits(24 * GIB, 80 * GIB, "cuda"),
        "deadlines": {Phase.LOAD: 30.0},
        "seed": 3,
        "root": root,
    }
    return Requests(**usual | changes)


def on_cpu(root: Path, **changes: Any) -> Requests:
    return requests(root, device_type="cpu", device_uuid=None, limits=limits(GIB, 8 * GIB, "cpu"), **changes)


def test_what_a_worker_is_told(tmp_path: Path) -> None:
    makes = requests(tmp_path)
    made = makes.make(LAYER, makes.folder("4"))
    assert (made.strategy, made.workload, made.device_uuid, made.seed) == (LAYER, WORKLOAD, "GPU-1", 3)
    assert (made.limit_bytes, made.budget_bytes, made.emulated) == (makes.limits.limit_bytes, 24 * GIB, True)
    assert made.deadlines == {Phase.LOAD: 30.0}
    assert makes.make(LAYER, makes.folder("4")).trial_uuid != made.trial_uuid


def test_the_environment_is_fixed_before_torch_loads(tmp_path: Path) -> None:
    makes = requests(tmp_path)
    environment = makes.make(LAYER, makes.folder("0")).environment
    threads = str(worker_threads())
    assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == threads
    assert environment["GOMP_SPINCOUNT"] == "0" and environment["HF_HUB_OFFLINE"] == "1"
    assert environment["CUBLAS_WORKSPACE_CONFIG"] == CUBLAS_WORKSPACE
    assert environment["TORCHINDUCTOR_AUTOTUNE_IN_SUBPROC"] == "0"
    assert environment["TORCHINDUCTOR_COMPILE_THREADS"] == str(min(32, worker_threads()))
    segments = makes.make({**LAYER, "expandable_segments": True}, makes.folder("1")).environment
    assert any("expandable_segments" in value for value in segments.values())


def test_many_cores_get_no_more_than_32_compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "worker_threads", lambda: 95)
    makes = requests(tmp_path)
    environment = makes.make(LAYER, makes.folder("0")).environment
    assert (environment["TORCHINDUCTOR_COMPILE_THREADS"], environment["OMP_NUM_THREADS"]) == ("32", "95")


def test_a_hub_model_may_be_fetched(tmp_path: Path) -> None:
    makes = requests(tmp_path, workload=WORKLOAD.model_copy(update={"model_kind": ModelKind.HUB}))
    assert "HF_HUB_OFFLINE" not in makes.make(LAYER, makes.folder("0")).environment


def test_one_cache_a_study_and_one_of_its_own_where_it_is_cold(tmp_path: Path) -> None:
    makes = requests(tmp_path)
    shared = {makes.make(LAYER, makes.folder(str(n))).cache_dir for n in range(2)}
    assert shared == {str(tmp_path / "s" / "compile-cache")}
    folder = makes.folder("proof")
    assert makes.make(LAYER, folder, cold=True).cache_dir == str(folder.path / "compile-cache")
    cold = requests(tmp_path, cold=True)
    folder = cold.folder("7")
    assert cold.make(LAYER, folder).cache_dir == str(folder.path / "compile-cache")
    assert Path(cold.make(LAYER, folder).cache_dir).is_absolute()


def test_the_cap_is_learned_by_kind_of_mode_from_the_first_ok(tmp_path: Path) -> None:
    makes = requests(tmp_path)
    limit = makes.limits.limit_bytes
    assert makes.cap_bytes(LAYER) == limit - int(1.1 * GIB)
    peaks: dict[str, Any] = {"peak_device_bytes": 20 * GIB, "peak_reserved_bytes": 18 * GIB}
    makes.learn([record_of(Outcome.OVER_BUDGET, LAYER, **peaks), record_of(strategy=LAYER)])
    assert makes.cap_bytes(LAYER) == limit - int(1.1 * GIB), "neither says what lies outside"
    makes.learn([record_of(strategy=LAYER, **peaks)])
    makes.learn([record_of(strategy={**LAYER, "scope": "whole"}, **peaks | {"peak_reserved_bytes": 12 * GIB})])
    assert makes.cap_bytes(LAYER) == makes.cap_bytes({**LAYER, "micro_batch": 2}) == limit - 2 * GIB
    assert makes.cap_bytes(GRAPHS) == makes.cap_bytes(BASELINE) == limit - int(1.1 * GIB)
    assert makes.make(LAYER, makes.folder("0")).cap_bytes == limit - 2 * GIB


def test_a_cpu_has_no_cap(tmp_path: Path) -> None:
    makes = on_cpu(tmp_path)
    assert makes.cap_bytes(LAYER) is None and makes.make(LAYER, makes.folder("0")).cap_bytes is None


def test_a_record_has_all_that_is_known(tmp_path: Path) -> None:
    makes = on_cpu(tmp_path)
    asked = makes.make(LAYER, makes.folder("0"))
    phases = (
        PhaseRecord(phase=Phase.LOAD, seconds=1, device_bytes=100, reserved_bytes=7, allocated_bytes=5),
        PhaseRecord(phase=Phase.STEADY, seconds=3, device_bytes=300, reserved_bytes=9, allocated_bytes=4),
        PhaseRecord(phase=Phase.LONGEST_BATCH, seconds=3),
    )
    report = CompileReport(graphs=1, compile_seconds=12.0)
    tried = attempt(
        asked,
        result=result(asked.trial_uuid, phases=phases, compile=report),
        device_peaks={Phase.LOAD: 50, Phase.STEADY: 500},
        started_at=5.0,
        seconds=40.0,
        tail="last line",
    )
    record = makes.record(tried, classify(tried), role="search", source="recipe: layer", number=4)
    assert (record.uuid, record.key, record.study, record.number) == (asked.trial_uuid, "key", "s", 4)
    assert record.outcome is Outcome.OK and record.fingerprint == fingerprint(LAYER)
    assert (record.tokens_per_s, record.compile_seconds, record.seconds) == (100.0, 12.0, 40.0)
    peaks = (record.peak_device_bytes, record.peak_reserved_bytes, record.peak_allocated_bytes)
    assert peaks == (500, 9, 5), "the parent's samples lie over the worker's own"
    assert record.result is not None
    assert [p.device_bytes for p in record.result.phases] == [100, 500, None]
    assert record.tail == "", "a log is kept of what went wrong"


def test_a_record_says_under_which_variables_it_was_measured(tmp_path: Path) -> None:
    threads = str(worker_threads())
    own = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "GOMP_SPINCOUNT": "0"}
    verdict = Verdict(outcome=Outcome.OK)
    for makes, expected in (
        (on_cpu(tmp_path), own),
        (requests(tmp_path), own | {"CUBLAS_WORKSPACE_CONFIG": CUBLAS_WORKSPACE}),
    ):
        tried = attempt(makes.make(LAYER, makes.folder("0")))
        record = makes.record(tried, verdict, role="search", source="", number=0)
        assert record.process_environment == expected


def test_an_eager_record_has_no_compile_time(tmp_path: Path) -> None:
    makes = on_cpu(tmp_path)
    asked = makes.make(BASELINE, makes.folder("0"))
    tried = attempt(asked, result=result(asked.trial_uuid))
    assert makes.record(tried, classify(tried), role="search", source="", number=0).compile_seconds is None


def test_a_record_of_a_failure(tmp_path: Path) -> None:
    makes = requests(tmp_path)
    asked = makes.make(LAYER, makes.folder("0"))
    failure = Failure(
        failure_class=FailureClass.OOM, phase=Phase.FIRST_STEP, type="OOM", detail="more", needed_bytes=25 * GIB
    )
    tried = attempt(asked, result=result(asked.trial_uuid, throughput=None, failure=failure), tail="a\nb")
    record = makes.record(tried, classify(tried), role="retry", source="", number=None)
    assert (record.outcome, record.phase, record.needed_bytes) == (Outcome.OOM, Phase.FIRST_STEP, 25 * GIB)
    assert (record.tail, record.detail, record.role) == ("a\nb", "more", "retry")
    assert record.compile_seconds is None and record.tokens_per_s is None


def test_a_record_of_a_worker_that_said_nothing(tmp_path: Path) -> None:
    makes = on_cpu(tmp_path)
    asked = makes.make(LAYER, makes.folder("0"))
    verdict = Verdict(outcome=Outcome.CRASH, phase=Phase.START, detail="gone")
    record = makes.record(attempt(asked, exit_code=1), verdict, role="search", source="", number=0)
    assert record.result is None and record.peak_reserved_bytes is None and record.outcome is Outcome.CRASH


@pytest.mark.parametrize("name", ["0", "proof", "run"])
def test_a_folder_is_never_used_twice(tmp_path: Path, name: str) -> None:
    makes = requests(tmp_path)
    assert [makes.folder(name).path.name for _ in range(3)] == [name, f"{name}.1", f"{name}.2"]


@pytest.mark.parametrize(("base_line", "expected"), [(2 * GIB, (3 * GIB, 6 * GIB)), (None, (5 * GIB, 6 * GIB))])
def test_a_desktop_is_not_in_the_peaks_of_a_card(
    tmp_path: Path, base_line: int | None, expected: tuple[int, int]
) -> None:
    makes = requests(tmp_path)
    asked = makes.make(LAYER, makes.folder("0")).model_copy(update={"base_line_bytes": base_line})
    phases = (
        PhaseRecord(phase=Phase.LOAD, seconds=1, device_bytes=5 * GIB),
        PhaseRecord(phase=Phase.STEADY, seconds=3, device_bytes=8 * GIB),
    )
    # Nobody sampled `load`; the worker sees the whole card, the parent what is above the base line.
    tried = attempt(
        asked,
        result=result(asked.trial_uuid, phases=phases, compile=CompileReport(graphs=1)),
        device_peaks={Phase.STEADY: 6 * GIB},
    )
    record = makes.record(tried, classify(tried), role="search", source="", number=0)
    assert record.result is not None and record.peak_device_bytes == 6 * GIB
    assert tuple(p.device_bytes for p in record.result.phases) == expected


def test_a_request_says_why_it_is_launched(tmp_path: Path) -> None:
    makes = requests(tmp_path)
    assert makes.make(LAYER, makes.folder("0")).role == "search"
    assert makes.make(LAYER, makes.folder("proof"), cold=True, role="proof").role == "proof"


def test_a_files_cap_goes_before_what_was_learned(tmp_path: Path) -> None:
    makes = requests(tmp_path)
    peaks: dict[str, Any] = {"peak_device_bytes": 20 * GIB, "peak_reserved_bytes": 18 * GIB}
    makes.learn([record_of(strategy=LAYER, **peaks)])
    makes.take_outside(LAYER, GIB // 2)
    assert makes.cap_bytes(LAYER) == makes.limits.limit_bytes - GIB // 2
    assert makes.cap_bytes(BASELINE) == makes.limits.limit_bytes - int(1.1 * GIB)
