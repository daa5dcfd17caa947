"""The sampler proposes what is legal, canonical and new."""

from __future__ import annotations

import statistics
import time
from typing import Any

import optuna
import pytest

from strategies.knob import Value
from tests.tuner.made import CPU, CUDA
from tuner.encoding import decode, distributions, encode
from tuner.errors import WrongInput
from tuner.sampler import DRAWS, LegalSampler, SpaceExhausted, derived_seed, make_sampler
from tuner.space import Space, canonical, default_allowed, fingerprint

SPEEDS: dict[str, dict[Value, float]] = {
    "mode": {"off": 1.0, "default": 1.6, "reduce-overhead": 2.0, "max-autotune-no-cudagraphs": 1.7},
    "scope": {"layer": 1.5, "whole": 1.1},
    "checkpointing": {"off": 1.5, "every-second-block": 1.2},
    "micro_batch": {2: 1.3, 4: 1.4},
    "optimizer": {"adamw": 1.1},
    "expandable_segments": {False: 1.1},
}


def speed(strategy: dict[str, Value]) -> float:
    """A landscape in which every knob has its own share."""
    product = 1000.0
    for name, shares in SPEEDS.items():
        product *= shares.get(strategy[name], 1.0)
    return product


def sampler_of(name: str, space: Space, seed: int = 0, **changes: Any) -> LegalSampler:
    values: dict[str, Any] = {"known": set(), "draws": DRAWS[name], "seed": seed} | changes
    return LegalSampler(make_sampler(name, seed), space, **values)


def search(sampler: LegalSampler, trials: int) -> list[dict[str, Value]]:
    """Ask, score and tell, with nothing measured."""
    study = optuna.create_study(direction="maximize", sampler=sampler)
    asked = []
    for _ in range(trials):
        trial = study.ask(distributions(sampler.space.target))
        strategy = decode(trial.params, sampler.space.target)
        sampler.known.add(fingerprint(strategy))
        asked.append(strategy)
        study.tell(trial, speed(strategy))
    return asked


@pytest.fixture(scope="module")
def wide() -> Space:
    return Space(CUDA, default_allowed(CUDA, include_slow=True))


@pytest.mark.parametrize("name", ["tpe", "random"])
def test_sixty_trials_are_sixty_legal_strategies(name: str, wide: Space) -> None:
    asked = search(sampler_of(name, wide), 60)
    assert len({fingerprint(s) for s in asked}) == 60
    assert all(s in wide and canonical(s) == s for s in asked)


def test_gp(wide: Space) -> None:
    sampler = sampler_of("gp", wide)
    asked = search(sampler, 14)
    assert len({fingerprint(s) for s in asked}) == 14 and all(s in wide for s in asked)


@pytest.mark.parametrize("name", ["tpe", "random"])
def test_a_small_space_is_exhausted_once_each_was_proposed(name: str) -> None:
    space = Space(CPU, {"mode": ("off",), "optimizer": ("adamw",), "expandable_segments": (False,)})
    assert 4 < len(space) < 60
    sampler = sampler_of(name, space)
    asked = search(sampler, len(space))
    assert sorted(fingerprint(s) for s in asked) == sorted(space.index)
    with pytest.raises(SpaceExhausted, match=f"all {len(space)} strategies"):
        search(sampler, 1)


def test_what_is_known_is_not_proposed(wide: Space) -> None:
    left = list(wide.index)[100:103]
    sampler = sampler_of("tpe", wide, known=set(wide.index) - set(left))
    assert {fingerprint(s) for s in search(sampler, 3)} == set(left)


def test_filters_are_kept_and_leave_the_choice_to_the_sampler() -> None:
    space = Space(CUDA, {"mode": ("default",), "scope": ("layer", "whole"), "dynamic": ("false",)})
    sampler = sampler_of("tpe", space)
    asked = search(sampler, 40)
    assert {(s["mode"], s["dynamic"]) for s in asked} == {("default", "false")}
    assert {s["scope"] for s in asked} == {"layer", "whole"}
    assert sampler.from_wrapped >= 25


def test_tpe_learns(wide: Space) -> None:
    def median_best(name: str) -> float:
        return statistics.median(max(map(speed, search(sampler_of(name, wide, seed), 50))) for seed in range(5))

    assert median_best("tpe") > median_best("random")


def test_the_draws_of_tpe_are_taken(wide: Space) -> None:
    sampler = sampler_of("tpe", wide)
    search(sampler, 50)
    assert sampler.from_wrapped >= 35 and sampler.from_wrapped + sampler.from_rest == 50


def test_random_is_uniform_over_the_legal_ones(wide: Space) -> None:
    asked = search(sampler_of("random", wide), 300)
    share = sum(s["mode"] == "off" for s in wide.strategies) / len(wide)
    assert abs(sum(s["mode"] == "off" for s in asked) / 300 - share) < 0.06


def test_the_same_seed_proposes_the_same(wide: Space) -> None:
    first, again, other = (search(sampler_of("tpe", wide, seed), 15) for seed in (1, 1, 2))
    assert first == again != other


def test_forced_parameters_come_first(wide: Space) -> None:
    sampler = sampler_of("tpe", wide)
    baseline = canonical({})
    sampler.force(encode(baseline, CUDA))
    assert search(sampler, 1) == [baseline]


def test_a_parameter_alone_is_refused(wide: Space) -> None:
    study = optuna.create_study(sampler=sampler_of("tpe", wide))
    with pytest.raises(ValueError, match="is no knob of this study"):
        study.ask().suggest_int("depth", 0, 3)


def test_an_unknown_sampler() -> None:
    with pytest.raises(
        WrongInput, match=r"sampler: must be one of tpe, gp, random, not 'tpa' \(did you mean 'tpe'\?\)"
    ):
        make_sampler("tpa", 0)


def test_gp_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.sampler.find_spec", lambda name: None)
    with pytest.raises(WrongInput, match="sampler: needs scipy, which is not installed, not 'gp'"):
        make_sampler("gp", 0)


def test_derived_seeds_differ_with_the_number_of_trials() -> None:
    assert len({derived_seed(0, n) for n in range(100)}) == 100
    assert derived_seed(0, 3) == derived_seed(0, 3) != derived_seed(1, 3)
    assert 0 <= derived_seed(0, 0) < 2**32


def test_encoding_goes_both_ways(wide: Space) -> None:
    for strategy in wide.strategies[::97]:
        params = encode(strategy, CUDA)
        assert decode(params, CUDA) == strategy and params.keys() == distributions(CUDA).keys()
    assert params["micro_batch"] in (0, 1, 2)
    with pytest.raises(WrongInput, match="micro_batch: must be one of 1, 2, 4, not 3"):
        encode(canonical({"micro_batch": 3}), CUDA)


def test_the_distributions_are_the_full_lists() -> None:
    found = distributions(CUDA)
    assert found["mode"] == optuna.distributions.CategoricalDistribution(
        ("off", "default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")
    )
    assert found["micro_batch"] == optuna.distributions.IntDistribution(0, 2)
    assert found["checkpointing"] == optuna.distributions.IntDistribution(0, 2)


def test_an_ask_takes_a_moment_at_two_hundred_trials(wide: Space) -> None:
    sampler = sampler_of("tpe", wide)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for strategy in wide.strategies[:: len(wide) // 200][:200]:
        sampler.known.add(fingerprint(strategy))
        params: dict[str, Any] = encode(strategy, CUDA)
        study.add_trial(optuna.create_trial(params=params, distributions=distributions(CUDA), value=speed(strategy)))
    times = []
    for _ in range(15):
        began = time.perf_counter()
        trial = study.ask(distributions(CUDA))
        times.append(time.perf_counter() - began)
        study.tell(trial, 1.0)
    assert len(study.trials) == 215
    assert statistics.median(times) < 0.2
