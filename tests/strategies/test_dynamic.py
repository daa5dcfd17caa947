from __future__ import annotations

from typing import Any

import pytest

from strategies.dynamic import KNOB
from strategies.knob import Severity


def test_means_nothing_with_compile_off(full: Any) -> None:
    assert not KNOB.active(full(mode="off"))
    assert KNOB.active(full(mode="default"))


def test_auto_is_pointless_with_one_length(conflict: Any, full: Any, cuda: Any) -> None:
    found = conflict(KNOB, full(mode="default", dynamic="auto"), cuda())
    assert found.severity is Severity.POINTLESS
    assert KNOB.conflict(full(mode="default", dynamic="auto"), cuda(lengths_vary=True)) is None


@pytest.mark.parametrize("value", ["false", "true"])
def test_the_others_are_legal(value: Any, full: Any, cuda: Any) -> None:
    assert KNOB.conflict(full(mode="default", dynamic=value), cuda()) is None


@pytest.mark.parametrize(("value", "argument"), [("false", False), ("true", True), ("auto", None)])
def test_apply(value: Any, argument: bool | None, build: Any) -> None:
    KNOB.apply(build, value)
    assert build.compile.options == {"dynamic": argument}
