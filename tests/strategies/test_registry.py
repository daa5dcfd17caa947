"""The contract that every knob keeps. A new knob is tested here without a line of its own."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections.abc import Iterator

import pytest

from strategies.knob import Conflict, Knob, Stage, Target, Value
from strategies.recipes import complete
from strategies.registry import KNOBS, by_name

TARGETS = [
    Target(device_type="cpu", batch_size=4, adapter="full"),
    Target(device_type="cpu", batch_size=1, adapter="lora", layers=1, dropout=0.1),
    Target(device_type="cuda", batch_size=8, adapter="full", multiprocessors=132, layers=32),
    Target(device_type="cuda", batch_size=6, adapter="qlora", multiprocessors=58, lengths_vary=True, emulated=True),
    Target(device_type="cuda", batch_size=12, adapter="full", dropout=0.1, is_moe=True),
]
EVERY_KNOB = pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: knob.name)
EVERY_TARGET = pytest.mark.parametrize("target", TARGETS, ids=lambda t: f"{t.device_type}-{t.adapter}-{t.batch_size}")


def _prefixes(knob: Knob, target: Target) -> Iterator[dict[str, Value]]:
    """Some strategies that end with `knob`: what it may read and no more."""
    readable = KNOBS[: KNOBS.index(knob) + 1]
    rng = random.Random(0)
    for value, _ in itertools.product(knob.domain(target), range(60)):
        yield {k.name: rng.choice(k.domain(target)) for k in readable} | {knob.name: value}


def test_names_and_order() -> None:
    assert [knob.name for knob in KNOBS] == [
        "mode",
        "scope",
        "dynamic",
        "fullgraph",
        "checkpointing",
        "activation_memory_budget",
        "optimizer",
        "micro_batch",
        "warmup_fraction",
        "expandable_segments",
    ]


@EVERY_KNOB
def test_is_found_by_its_name(knob: Knob) -> None:
    assert by_name(knob.name) is knob
    assert sum(other.name == knob.name for other in KNOBS) == 1


def test_unknown_name_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="modes"):
        by_name("modes")


@EVERY_KNOB
@EVERY_TARGET
def test_values(knob: Knob, target: Target) -> None:
    domain = knob.domain(target)
    assert knob.baseline in knob.values
    assert knob.baseline in domain
    assert len(set(domain)) == len(domain)
    assert {type(value) for value in domain} == {type(knob.baseline)}
    assert knob.slow < set(knob.values)
    assert knob.baseline not in knob.slow


@EVERY_KNOB
@EVERY_TARGET
def test_every_value_is_explained_in_a_sentence_of_its_own(knob: Knob, target: Target) -> None:
    sentences = [knob.explain(value) for value in knob.domain(target)]
    assert all(sentence.endswith(".") and len(sentence) > 20 for sentence in sentences)
    assert len(set(sentences)) == len(sentences)
    assert knob.help and knob.version >= 1 and isinstance(knob.stage, Stage)


@EVERY_KNOB
@EVERY_TARGET
def test_reads_itself_and_earlier_knobs_alone(knob: Knob, target: Target) -> None:
    for prefix in _prefixes(knob, target):
        assert isinstance(knob.active(prefix), bool)
        conflict = knob.conflict(prefix, target)
        assert conflict is None or (isinstance(conflict, Conflict) and len(conflict.reason) > 20)


@EVERY_KNOB
@EVERY_TARGET
def test_the_baseline_is_legal_everywhere(knob: Knob, target: Target) -> None:
    assert knob.conflict(complete({}), target) is None


@EVERY_KNOB
@EVERY_TARGET
def test_equivalents_are_other_values_of_its_own(knob: Knob, target: Target) -> None:
    facts = {"graph_breaks": 0, "graphs": 1, "flags": []}
    for prefix in _prefixes(knob, target):
        others = knob.equivalent(complete(prefix), facts)
        assert set(others) <= set(knob.domain(target)) - {prefix[knob.name]}


@EVERY_KNOB
def test_exports_a_mapping_or_nothing(knob: Knob) -> None:
    for value in knob.values:
        assert knob.export(value, "no-such-trainer") is None
        exported = knob.export(value, "trainer")
        assert exported is None or isinstance(exported, dict)


def test_trainer_takes_what_is_exported() -> None:
    import dataclasses

    from transformers import TrainingArguments

    known = {field.name for field in dataclasses.fields(TrainingArguments)}
    spelled = [knob.export(value, "trainer") or {} for knob in KNOBS for value in knob.values]
    assert set().union(*spelled) <= known
    assert len(set().union(*spelled)) >= 6


def test_importable_without_torch() -> None:
    program = (
        "import sys; import strategies.registry, strategies.recipes; "
        "print([m for m in ('torch', 'optuna', 'tuner', 'bitsandbytes', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
