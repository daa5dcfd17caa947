from __future__ import annotations

from typing import Any

import pytest

from strategies.knob import Severity, Target
from strategies.mode import KNOB


@pytest.mark.parametrize(
    ("mode", "same"),
    [("reduce-overhead", "repeats default"), ("max-autotune", "repeats max-autotune-no-cudagraphs")],
)
def test_graphs_are_pointless_on_a_cpu(conflict: Any, mode: str, same: str, full: Any, cpu: Target) -> None:
    found = conflict(KNOB, full(mode=mode), cpu)
    assert found.severity is Severity.POINTLESS
    assert same in found.reason


@pytest.mark.parametrize("mode", ["off", "default", "max-autotune-no-cudagraphs"])
def test_the_others_are_legal_on_a_cpu(mode: str, full: Any, cpu: Target) -> None:
    assert KNOB.conflict(full(mode=mode), cpu) is None


@pytest.mark.parametrize(
    ("mode", "same"), [("max-autotune-no-cudagraphs", "repeats default"), ("max-autotune", "repeats reduce-overhead")]
)
def test_autotuning_is_pointless_below_68_multiprocessors(
    conflict: Any, mode: str, same: str, full: Any, cuda: Any
) -> None:
    assert same in conflict(KNOB, full(mode=mode), cuda(multiprocessors=67)).reason
    assert KNOB.conflict(full(mode=mode), cuda(multiprocessors=68)) is None
    assert KNOB.conflict(full(mode=mode), cuda(multiprocessors=None)) is None


def test_graphs_are_pointless_with_varying_lengths(full: Any, cuda: Any) -> None:
    legal = {m for m in KNOB.values if KNOB.conflict(full(mode=m), cuda(lengths_vary=True)) is None}
    assert legal == {"off", "default", "max-autotune-no-cudagraphs"}


def test_the_68_are_torchs_own() -> None:
    import inspect

    import torch._inductor.utils as utils

    assert "68" in inspect.getsource(utils.is_big_gpu)


def test_apply(build: Any) -> None:
    KNOB.apply(build, "reduce-overhead")
    assert build.compile.enabled
    assert build.compile.options == {"mode": "reduce-overhead"}
    KNOB.apply(build, "off")
    assert not build.compile.enabled


def test_torch_knows_every_mode() -> None:
    from torch._inductor import list_mode_options

    assert set(KNOB.values) - {"off"} <= set(list_mode_options())


def test_the_graph_modes_are_those_with_graphs() -> None:
    from torch._inductor import list_mode_options

    from strategies.knob import GRAPH_MODES

    with_graphs = {mode for mode, options in list_mode_options().items() if options.get("triton.cudagraphs")}
    assert with_graphs == GRAPH_MODES


def test_a_trainer_cannot_run_graphs_with_accumulation() -> None:
    assert KNOB.export("default", "trainer") == {"torch_compile": True, "torch_compile_mode": "default"}
    assert KNOB.export("off", "trainer") == {"torch_compile": False}
    assert KNOB.export("reduce-overhead", "trainer") is None


def test_graphs_that_were_not_recorded_leave_the_mode_without(full: Any) -> None:
    nothing = {"no_effect": ("mode",)}
    strategy = full(mode="max-autotune", scope="layer", dynamic="true")
    assert KNOB.equivalent(strategy, nothing) == ("max-autotune-no-cudagraphs",)
    assert KNOB.equivalent(strategy, {"no_effect": ()}) == () == KNOB.equivalent(full(mode="default"), nothing)
    found = KNOB.rules_out(strategy, nothing)
    assert found is not None and found.trials == 2 and dict(found.where) == {
        "mode": ("max-autotune", "reduce-overhead"), "scope": ("layer",), "dynamic": ("true",),
    }  # fmt: skip
    assert KNOB.rules_out(full(mode="default"), nothing) is None
