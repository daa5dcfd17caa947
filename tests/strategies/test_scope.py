from __future__ import annotations

from strategies.scope import KNOB


def test_means_nothing_with_compile_off(full):
    assert not KNOB.active(full(mode="off"))
    assert KNOB.active(full(mode="default"))


def test_apply(build):
    KNOB.apply(build, "attention")
    assert build.compile.scope == "attention"


def test_a_trainer_compiles_the_whole_model_alone():
    assert KNOB.export("whole", "trainer") == {}
    assert KNOB.export("layer", "trainer") is None
