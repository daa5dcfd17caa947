from __future__ import annotations

import pytest

from strategies.knob import Value
from strategies.recipes import RECIPES, REFERENCES, complete, leanest, recipes
from strategies.registry import KNOBS


def test_complete_has_a_value_for_every_knob_in_order() -> None:
    strategy = complete({"scope": "layer", "mode": "default"})
    assert list(strategy) == [knob.name for knob in KNOBS]
    assert strategy["mode"] == "default"
    assert strategy["optimizer"] == "adamw"


def test_complete_refuses_an_unknown_knob() -> None:
    with pytest.raises(KeyError, match="scopes"):
        complete({"scopes": "layer"})


def test_the_references_are_the_baseline_and_eager_checkpointing() -> None:
    baseline, checkpointing = (complete(recipe.strategy) for recipe in REFERENCES)
    assert baseline == {knob.name: knob.baseline for knob in KNOBS}
    assert checkpointing == baseline | {"checkpointing": "every-block"}


def test_the_order() -> None:
    assert [recipe.name for recipe in RECIPES] == [
        "layer-amb",
        "layer-amb-graphs",
        "layer-checkpointing",
        "layer",
        "checkpointing-largest",
        "leanest-eager",
        "leanest-whole",
        "whole",
    ]
    assert [recipe.name for recipe in recipes("full")] == [recipe.name for recipe in RECIPES]


@pytest.mark.parametrize("adapter", ["full", "lora", "qlora"])
def test_every_value_exists_and_names_are_unique(adapter: str) -> None:
    everything = (*REFERENCES, *recipes(adapter))
    assert len({recipe.name for recipe in everything}) == len(everything)
    for recipe in everything:
        assert recipe.advice.endswith(".")
        assert all(complete(recipe.strategy)[knob.name] in knob.values for knob in KNOBS)


@pytest.mark.parametrize(("adapter", "optimizer"), [("full", "adamw-8bit"), ("lora", "adamw"), ("qlora", "adamw")])
def test_the_leanest_two(adapter: str, optimizer: str) -> None:
    eager, whole = (complete(recipe.strategy) for recipe in leanest(adapter))
    lean: dict[str, Value] = {"checkpointing": "every-block", "optimizer": optimizer, "micro_batch": 1}
    assert eager == complete(lean)
    assert whole == complete(lean | {"mode": "default", "scope": "whole"})
    assert [recipe.leanest for recipe in recipes(adapter)].count(True) == 2


def test_under_lora_the_leanest_eager_one_is_the_checkpointing_reference() -> None:
    assert complete(leanest("lora")[0].strategy) == complete(REFERENCES[1].strategy)


def test_unknown_adapter() -> None:
    with pytest.raises(KeyError, match="dora"):
        leanest("dora")
