from __future__ import annotations

import pytest

from strategies.dynamic import KNOB
from strategies.knob import Severity


def test_means_nothing_with_compile_off(full):
    assert not KNOB.active(full(mode="off"))
    assert KNOB.active(full(mode="default"))


def test_auto_is_pointless_with_one_length(full, cuda):
    conflict = KNOB.conflict(full(mode="default", dynamic="auto"), cuda())
    assert conflict.severity is Severity.POINTLESS
    assert KNOB.conflict(full(mode="default", dynamic="auto"), cuda(lengths_vary=True)) is None


@pytest.mark.parametrize("value", ["false", "true"])
def test_the_others_are_legal(value, full, cuda):
    assert KNOB.conflict(full(mode="default", dynamic=value), cuda()) is None


@pytest.mark.parametrize(("value", "argument"), [("false", False), ("true", True), ("auto", None)])
def test_apply(value, argument, build):
    KNOB.apply(build, value)
    assert build.compile.options == {"dynamic": argument}
