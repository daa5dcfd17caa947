from __future__ import annotations

from typing import Any

import pytest

from strategies.knob import Severity
from strategies.warmup_fraction import KNOB


@pytest.fixture
def severity(full: Any, cuda: Any) -> Any:
    def of(**values: Any) -> Any:
        conflict = KNOB.conflict(full(mode="default", **values), cuda())
        return conflict and conflict.severity

    return of


def test_means_nothing_with_compile_off(full: Any) -> None:
    assert not KNOB.active(full(mode="off"))
    assert KNOB.active(full(mode="default"))


@pytest.mark.parametrize(("fraction", "micro_batch"), [(0.5, 1), (0.25, 2), (0.25, 1)])
@pytest.mark.parametrize("dynamic", ["true", "false"])
def test_a_part_of_a_sequence_is_impossible(fraction: float, micro_batch: int, dynamic: str, severity: Any) -> None:
    got = severity(dynamic=dynamic, micro_batch=micro_batch, warmup_fraction=fraction)
    assert got is Severity.IMPOSSIBLE


@pytest.mark.parametrize(("fraction", "micro_batch"), [(0.5, 2), (0.25, 4)])
def test_a_single_sequence_is_pointless(fraction: float, micro_batch: int, severity: Any) -> None:
    got = severity(dynamic="true", micro_batch=micro_batch, warmup_fraction=fraction)
    assert got is Severity.POINTLESS


@pytest.mark.parametrize("dynamic", ["false", "auto"])
def test_without_symbolic_sizes_it_is_pointless(dynamic: str, severity: Any) -> None:
    assert severity(dynamic=dynamic, micro_batch=8, warmup_fraction=0.5) is Severity.POINTLESS


@pytest.mark.parametrize(("fraction", "micro_batch"), [(0.5, 4), (0.25, 8), (1.0, 1), (1.0, 8)])
def test_two_sequences_and_more_are_legal(fraction: float, micro_batch: int, severity: Any) -> None:
    assert severity(dynamic="true", micro_batch=micro_batch, warmup_fraction=fraction) is None


def test_apply(build: Any) -> None:
    build.micro_batch = 8
    KNOB.apply(build, 0.25)
    assert build.warmup_rows == 2
    KNOB.apply(build, 1.0)
    assert build.warmup_rows is None
