from __future__ import annotations

import dataclasses
import itertools
import subprocess
import sys
import time
from typing import Any

import pytest

from strategies.knob import Conflict, Severity, Strategy, Target, Value
from strategies.recipes import REFERENCES, complete, recipes
from strategies.registry import KNOBS, by_name
from tuner.errors import WrongInput
from tuner.space import (
    Space,
    canonical,
    conflict_of,
    default_allowed,
    describe,
    filter_values,
    fingerprint,
    parse_filter,
    validate,
)

CUDA = Target(device_type="cuda", batch_size=8, adapter="full", multiprocessors=132, layers=32)
CPU = Target(device_type="cpu", batch_size=2, adapter="full", layers=2)
BASELINE = {knob.name: knob.baseline for knob in KNOBS}


def test_canonical_takes_the_baseline_where_a_knob_is_not_active() -> None:
    wild: dict[str, Value] = {"scope": "layer", "dynamic": "true", "fullgraph": True, "activation_memory_budget": 0.5}
    assert canonical({"mode": "off", "warmup_fraction": 0.5, **wild}) == BASELINE
    assert canonical({"mode": "default", **wild}) == complete({"mode": "default", **wild})


def test_canonical_is_in_registry_order_and_its_own_canonical_form() -> None:
    once = canonical({"micro_batch": 2, "scope": "layer", "mode": "default"})
    assert list(once) == [knob.name for knob in KNOBS]
    assert canonical(once) == once


def test_canonical_gives_numbers_their_knobs_type() -> None:
    strategy = canonical({"mode": "default", "activation_memory_budget": 0, "micro_batch": 2.0})
    assert type(strategy["activation_memory_budget"]) is float
    assert type(strategy["micro_batch"]) is int


def test_canonical_refuses_an_unknown_knob() -> None:
    with pytest.raises(WrongInput, match=r"not 'scop'.*did you mean 'scope'"):
        canonical({"scop": "layer"})


def test_fingerprints_never_change() -> None:
    # Records are found by these: a change here loses what was measured.
    assert fingerprint({}) == "44136fa355b3"
    assert fingerprint({"mode": "default", "scope": "layer", "activation_memory_budget": 0.9}) == "0df691d2bff7"


def test_fingerprint_is_of_the_canonical_form() -> None:
    assert fingerprint({"mode": "off", "scope": "layer"}) == fingerprint(BASELINE)
    assert fingerprint({"mode": "default", "activation_memory_budget": 0}) == fingerprint(
        {"activation_memory_budget": 0.0, "mode": "default"}
    )
    assert fingerprint({"mode": "default"}) != fingerprint({"mode": "reduce-overhead"})


def test_fingerprint_changes_with_the_version_of_a_changed_knob(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    touched, untouched = {"mode": "default", "scope": "layer"}, {"mode": "default"}
    before = fingerprint(touched), fingerprint(untouched)
    monkeypatch.setattr(type(by_name("scope")), "version", 2)
    assert fingerprint(touched) != before[0]
    assert fingerprint(untouched) == before[1]


def test_a_new_knob_leaves_old_fingerprints_true(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint({"mode": "default"})
    monkeypatch.setattr("tuner.space.KNOBS", KNOBS[:-1])
    assert fingerprint({"mode": "default"}) == before


def _conflict(strategy: Strategy, target: Target) -> Conflict:
    found = conflict_of(strategy, target)
    assert found is not None
    return found


def test_conflict_of_reads_the_canonical_form() -> None:
    assert conflict_of({"mode": "off", "activation_memory_budget": 0.0}, CUDA) is None
    assert _conflict({"mode": "default", "activation_memory_budget": 0.0}, CUDA).severity is Severity.POINTLESS


def test_an_impossible_conflict_comes_before_a_pointless_one() -> None:
    # `run` may run a pointless strategy, so an impossible one must not hide behind it.
    conflict = _conflict({"mode": "reduce-overhead", "optimizer": "adamw-8bit-paged"}, CPU)
    assert conflict.severity is Severity.IMPOSSIBLE
    assert "paged" in conflict.reason
    assert "CUDA graphs" in _conflict({"mode": "reduce-overhead", "expandable_segments": True}, CPU).reason


def test_validate_reads_what_yaml_and_a_command_line_give() -> None:
    given = {"micro_batch": "4", "mode": False, "dynamic": True, "activation_memory_budget": "0.5", "fullgraph": "true"}
    read = validate(given, CUDA)
    assert list(read.items()) == [
        ("mode", "off"),
        ("dynamic", "true"),
        ("fullgraph", True),
        ("activation_memory_budget", 0.5),
        ("micro_batch", 4),
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"scop": "layer"}, r"knob: must be one of .*, not 'scop' \(did you mean 'scope'\?\)"),
        ({"scope": "layers"}, r"scope: must be one of whole, layer, .*, not 'layers' \(did you mean 'layer'\?\)"),
        ({"micro_batch": 3}, r"micro_batch: must be one of 1, 2, 4, 8, not 3"),
        ({"activation_memory_budget": 0.45}, r"activation_memory_budget: must be one of .*, not 0.45"),
        ({"scope": None}, r"scope: must be one of whole"),
    ],
)
def test_validate_names_field_rule_value_and_the_nearest_name(given: Any, message: str) -> None:
    with pytest.raises(WrongInput, match=message):
        validate(given, CUDA)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("scope=whole,layer", ("scope", ("whole", "layer"))),
        ("scope=layer, whole", ("scope", ("whole", "layer"))),
        ("mode=default", ("mode", ("default",))),
        ("mode=all", ("mode", by_name("mode").values)),
        ("micro_batch=all", ("micro_batch", (1, 2, 4, 8))),
        ("warmup_fraction=1,1/2", ("warmup_fraction", (1.0, 0.5))),
        ("expandable_segments=false", ("expandable_segments", (False,))),
    ],
)
def test_parse_filter(text: str, read: Any) -> None:
    assert parse_filter(text, CUDA) == read


@pytest.mark.parametrize("text", ["scope", "scope=", "scope=,", "=layer", "scope=all,x", "scopes=layer", "scope=lay"])
def test_parse_filter_refuses(text: str) -> None:
    with pytest.raises(WrongInput):
        parse_filter(text, CUDA)


def test_filter_values_takes_a_list_of_yaml() -> None:
    assert filter_values("mode", [False, "default"], CUDA) == ("off", "default")


def test_default_allowed_leaves_the_slow_values_out() -> None:
    assert default_allowed(CUDA, include_slow=False)["mode"] == ("off", "default", "reduce-overhead")
    assert default_allowed(CUDA, include_slow=True)["mode"] == by_name("mode").values
    assert default_allowed(CUDA, include_slow=False)["micro_batch"] == (1, 2, 4, 8)


def _brute_force(target: Target, allowed: dict[str, tuple[Value, ...]]) -> set[tuple[Value, ...]]:
    legal: set[tuple[Value, ...]] = set()
    for values in itertools.product(*(allowed[knob.name] for knob in KNOBS)):
        strategy = dict(zip(allowed, values, strict=True))
        if canonical(strategy) == strategy and conflict_of(strategy, target) is None:
            legal.add(tuple(strategy.values()))
    return legal


SMALL: dict[str, tuple[Value, ...]] = {"activation_memory_budget": (1.0, 0.5, 0.0), "fullgraph": (False,)}


@pytest.mark.parametrize(
    "target",
    [
        CPU,
        dataclasses.replace(CUDA, batch_size=4, dropout=0.1, emulated=True),
        dataclasses.replace(CUDA, batch_size=2, adapter="lora", lengths_vary=True, layers=1, multiprocessors=58),
    ],
    ids=["cpu", "emulated", "lora"],
)
def test_the_space_is_what_brute_force_finds(target: Target) -> None:
    allowed = default_allowed(target, include_slow=True) | SMALL
    space = Space(target, allowed)
    found = [tuple(strategy.values()) for strategy in space.strategies]
    assert len(found) == len(set(found)) == len(space) > 20
    assert set(found) == _brute_force(target, allowed)


def test_everything_in_a_space_is_canonical_and_legal() -> None:
    space = Space(CPU, default_allowed(CPU, include_slow=True))
    assert all(canonical(s) == s and conflict_of(s, CPU) is None for s in space.strategies)
    assert len(space.index) == len(space)
    for identity, position in list(space.index.items())[::50]:
        assert fingerprint(space.strategies[position]) == identity
        assert space.at(identity) is space.strategies[position]


def test_all_values_on_a_card_take_less_than_a_second() -> None:
    start = time.perf_counter()
    space = Space(CUDA, default_allowed(CUDA, include_slow=True))
    assert len(space.index) == len(space) > 10_000
    # 0.4 s on two slow cores, the fingerprints included.
    assert time.perf_counter() - start < 5


def test_contains() -> None:
    space = Space(CUDA, {"scope": ("layer",)})
    assert complete({"mode": "default", "scope": "layer"}) in space
    assert {"mode": "off", "scope": "mlp"} in space  # its canonical form is the baseline
    assert complete({"mode": "default", "scope": "whole"}) not in space
    assert {"optimizer": "adamw-8bit-paged"} not in Space(dataclasses.replace(CUDA, emulated=True), {})


def test_a_filter_of_an_inactive_knob_leaves_the_space_whole() -> None:
    eager = {"mode": ("off",)}
    fixed = Space(CUDA, eager | {"scope": ("layer",), "activation_memory_budget": (0.5,), "dynamic": ("true",)})
    assert fixed.strategies == Space(CUDA, eager).strategies
    assert len(fixed) == 3 * 3 * 4 * 2


def test_a_filter_holds_where_its_knob_is_active() -> None:
    space = Space(CUDA, {"scope": ("layer",)})
    assert {s["scope"] for s in space.strategies if s["mode"] != "off"} == {"layer"}
    assert {s["scope"] for s in space.strategies if s["mode"] == "off"} == {"whole"}


def test_filters_that_contradict_each_other_leave_nothing() -> None:
    assert len(Space(CUDA, {"mode": ("default",), "dynamic": ("auto",)})) == 0


def test_a_space_refuses_values_that_are_not_there() -> None:
    with pytest.raises(WrongInput, match="micro_batch: must be one of 1, 2, 4, 8, not 3"):
        Space(CUDA, {"micro_batch": (3,)})
    with pytest.raises(WrongInput, match="scope: needs at least one value"):
        Space(CUDA, {"scope": ()})


@pytest.mark.parametrize("adapter", ["full", "lora", "qlora"])
def test_the_recipes_are_legal_on_a_large_card(adapter: str) -> None:
    target = dataclasses.replace(CUDA, adapter=adapter, emulated=True)
    space = Space(target, default_allowed(target, include_slow=False))
    assert all(recipe.strategy in space for recipe in (*REFERENCES, *recipes(adapter)))


def test_describe() -> None:
    assert describe(BASELINE) == "baseline"
    assert describe({"mode": "off", "scope": "layer"}) == "baseline"
    words: dict[str, Value] = {
        "mode": "default",
        "scope": "layer",
        "activation_memory_budget": 0.9,
        "expandable_segments": True,
    }
    assert describe(words) == "mode=default, scope=layer, activation_memory_budget=0.9, expandable_segments=true"


def test_importable_without_torch_and_optuna() -> None:
    program = "import sys; import tuner.space; print([m for m in ('torch', 'optuna', 'pydantic') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
