"""Gradients that are allocated once and zeroed in place."""

from __future__ import annotations

import pytest

from strategies.knob import Stage
from tests.models.small import Stack
from tests.tuner.test_build import as_before
from tests.tuner.worker.workloads import shaped
from tuner.build import ModelBuild, Plan

__all__ = ["as_before"]


@pytest.mark.parametrize("graphs", ["reduce-overhead", "max-autotune"])
@pytest.mark.parametrize("micro_batch", [1, 8])
@pytest.mark.parametrize("device_type", ["cuda", "cpu"])
def test_gradients_are_preallocated_for_graphs_with_accumulation_alone(
    graphs: str, micro_batch: int, device_type: str
) -> None:
    build = ModelBuild(Stack(), Plan(strategy={"mode": graphs, "micro_batch": micro_batch}, workload=shaped()))
    build.device_type = device_type
    for stage in (Stage.COMPILE, Stage.OPTIMIZER, Stage.BATCH):
        build.run_stage(stage)  # without compiling anything
    applied = build.finish(None)
    wanted = device_type == "cuda" and micro_batch == 1
    assert applied.keep_gradients is wanted
    assert applied.records_graphs is (device_type == "cuda")
    assert all((p.grad is not None) is wanted for p in applied.model.parameters())


@pytest.mark.parametrize("mode", ["off", "default"])
def test_no_other_mode_preallocates(mode: str) -> None:
    build = ModelBuild(Stack(), Plan(strategy={"mode": mode}, workload=shaped()))
    build.device_type = "cuda"
    for stage in (Stage.COMPILE, Stage.OPTIMIZER, Stage.BATCH):
        build.run_stage(stage)
    applied = build.finish(None)
    assert not applied.keep_gradients and not applied.records_graphs
    assert all(p.grad is None for p in applied.model.parameters())


def test_preallocated_gradients_are_zeroed_in_place_by_whoever_zeroes() -> None:
    build = ModelBuild(Stack(), Plan(strategy={"mode": "reduce-overhead"}, workload=shaped()))
    build.device_type = "cuda"
    for stage in (Stage.COMPILE, Stage.OPTIMIZER, Stage.BATCH):
        build.run_stage(stage)
    applied = build.finish(None)
    places = [p.grad.data_ptr() for p in applied.model.parameters() if p.grad is not None]
    for zero in (
        applied.zero_grad,
        applied.optimizer.zero_grad,
        lambda: applied.optimizer.zero_grad(set_to_none=True),
    ):
        for param in applied.model.parameters():
            assert param.grad is not None
            param.grad.fill_(1.0)
        zero()
        assert [p.grad.data_ptr() for p in applied.model.parameters() if p.grad is not None] == places
        assert all(not p.grad.any() for p in applied.model.parameters() if p.grad is not None)
