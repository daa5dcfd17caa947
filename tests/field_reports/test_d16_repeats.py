"""D16: the sampler proposes the same again and again."""

from __future__ import annotations

from collections import Counter

from tests.tuner.searching import Bench, bench
from tuner.errors import ExitCode
from tuner.space import canonical, fingerprint

__all__ = ["bench"]


def test_what_means_nothing_beside_compile_off_makes_no_other_strategy() -> None:
    same = [{}, {"scope": "layer"}, {"dynamic": "true", "fullgraph": True}, {"scope": "mlp", "dynamic": "auto"}]
    assert len({fingerprint(canonical({"mode": "off"} | values)) for values in same}) == 1


def test_every_trial_is_another_strategy(bench: Bench) -> None:
    found = bench.run(trials=25, sampler="tpe", time_budget="10h")
    launched = Counter(r.fingerprint for r in found.heard.records if r.role == "search")
    assert len(launched) == 25 and set(launched.values()) == {1}


def test_a_space_is_exhausted_and_known_from_then_on(bench: Bench) -> None:
    fixed = {"mode": "off", "optimizer": "adamw", "expandable_segments": "off"}
    found = bench.run(batch_size=2, fix=fixed, time_budget="10h")
    searched = [r for r in found.heard.records if r.role == "search"]
    assert found.end.exit_code is ExitCode.DONE and "are known" in found.end.reason
    assert len(searched) == len({r.fingerprint for r in searched}) == 6, (
        "three ways of checkpointing, two micro-batches"
    )
    assert bench.run(batch_size=2, fix=fixed, time_budget="10h").heard.begun == [], "stored results are used again"
