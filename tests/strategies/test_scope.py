from __future__ import annotations

from typing import Any

from strategies.scope import KNOB


def test_means_nothing_with_compile_off(full: Any) -> None:
    assert not KNOB.active(full(mode="off"))
    assert KNOB.active(full(mode="default"))


def test_apply(build: Any) -> None:
    KNOB.apply(build, "attention")
    assert build.compile.scope == "attention"


def test_a_trainer_compiles_the_whole_model_alone() -> None:
    assert KNOB.export("whole", "trainer") == {}
    assert KNOB.export("layer", "trainer") is None
