"""What has to be in the environment before torch is imported."""

from __future__ import annotations

import os

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"


from tests.models.small import Stack
from tests.tuner.test_build import applied_to, as_before
from tests.tuner.worker.workloads import shaped
from tuner.build import ModelBuild, Plan, apply, environment
from tuner.errors import WrongInput

__all__ = ["as_before"]


def test_a_variable_that_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    with pytest.raises(WrongInput, match=r"PYTORCH_ALLOC_CONF: must be 'expandable_segments:True'.*before torch"):
        applied_to(Stack(), expandable_segments=True)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    applied_to(Stack(), expandable_segments=True)
    assert environment({"expandable_segments": True}) == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_the_allocators_settings_are_read_one_by_one(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.setenv(name, "max_split_size_mb:128, expandable_segments:True")
    applied_to(Stack(), expandable_segments=True)
    build = ModelBuild(Stack(), Plan(strategy={}, workload=shaped()))
    build.check_process()  # a CPU has no such allocator
    build.device_type = "cuda"
    with pytest.raises(WrongInput, match=rf"^{name}: must not switch expandable_segments on"):
        build.check_process()
    monkeypatch.setenv(name, "expandable_segments:False")
    build.check_process()


def test_what_was_measured_in_another_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("MKL_NUM_THREADS", "7")
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    measured = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GOMP_SPINCOUNT": "0"}
    applied = apply(Stack(), Plan(strategy={}, workload=shaped(), process_environment=measured))
    assert applied.unapplied == (
        "MKL_NUM_THREADS: measured with '1', here it is '7'",
        "GOMP_SPINCOUNT: measured with '0', here it is not set",
    )
