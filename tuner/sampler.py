"""What is proposed next: one of Optuna's samplers, held to what is legal and not known."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from strategies.knob import Knob, Value
from strategies.registry import KNOBS
from tuner.encoding import Params, decode, distributions, encode
from tuner.errors import WrongInput, nearest
from tuner.space import Space, fingerprint

DRAWS = {"tpe": 3, "gp": 3, "random": 0}
"""How often each is asked for one trial. With TPE 3, 6 and 12 found equally good strategies (ten random
landscapes), and a draw takes 5 to 10 ms; GP optimises and would come to the same again. Random draws are
uniform over the legal strategies at once, not over knobs that may mean nothing."""


class SpaceExhausted(Exception):
    """Every strategy of the space is known."""


def make_sampler(name: str, seed: int, slots: int = 1) -> BaseSampler:
    """Return Optuna's sampler of that name, for `slots` trials at a time.

    Raises:
        WrongInput: there is none, or what it needs is not installed.
    """
    if name == "tpe":
        # Multivariate is the default for one objective since Optuna 5. So is the constant liar, which takes
        # running trials for bad ones; with one trial at a time it does nothing but read the database at each draw.
        return TPESampler(seed=seed, constant_liar=slots > 1)
    if name == "gp":
        for needed in ("scipy", "torch"):
            if find_spec(needed) is None:
                raise WrongInput("sampler", f"needs {needed}, which is not installed", name)
        return GPSampler(seed=seed, warn_independent_sampling=False)
    if name == "random":
        return RandomSampler(seed=seed)
    raise WrongInput("sampler", "must be one of " + ", ".join(DRAWS), name, nearest(name, DRAWS))


def derived_seed(seed: int, trials: int) -> int:
    """Return the seed of a sampler for a study that has `trials` trials.

    The same seed again would repeat the first random draws of the study.
    """
    return int(hashlib.sha256(f"{seed}:{trials}".encode()).hexdigest()[:8], 16)


class LegalSampler(BaseSampler):
    """Proposes canonical strategies of a space that are not known, whatever the wrapped sampler draws.

    The wrapped sampler draws up to `draws` times, and each draw is made legal (`_Branches`): of
    plain draws only one in twenty is. If none is new, one of the rest is taken, each as likely.

    Args:
        space: what is legal, within the filters.
        known: fingerprints that are not proposed; the caller adds to it.
    """

    def __init__(self, wrapped: BaseSampler, space: Space, known: set[str], *, draws: int, seed: int) -> None:
        self.wrapped, self.space, self.known, self.draws = wrapped, space, known, draws
        self.from_wrapped = 0
        """Proposals that the wrapped sampler drew."""
        self.from_rest = 0
        """Proposals that were taken uniformly from the rest."""
        self._forced: Params | None = None
        self._proposed: Params | None = None
        self._random = random.Random(seed)
        self._distributions = distributions(space.target)
        self._branches = _Branches(space, self._random)

    def force(self, params: Params | None) -> None:
        """Propose `params` next, or with None what is drawn."""
        self._forced, self._proposed = params, None

    def made(self, params: Mapping[str, object]) -> bool:
        """Are these the parameters that were proposed last?"""
        return params == self._proposed

    def rest(self) -> list[str]:
        """Return the fingerprints of the space that are not known.

        Raises:
            SpaceExhausted: there is none.
        """
        rest = [print_ for print_ in self.space.index if print_ not in self.known]
        if not rest:
            raise SpaceExhausted(f"all {len(self.space)} strategies of the space are known")
        return rest

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return all knobs that have more than one value: a strategy is proposed whole."""
        return {name: found for name, found in self._distributions.items() if not found.single()}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: Mapping[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the parameters of a new strategy.

        Raises:
            SpaceExhausted: every strategy is known.
        """
        self._proposed = dict(self._forced or self._propose(study, trial))
        return {name: self._proposed[name] for name in search_space}

    def _propose(self, study: Study, trial: FrozenTrial) -> Params:
        rest = self.rest()
        for _ in range(self.draws):
            print_ = fingerprint(self._branches.legal(self._draw(study, trial)))
            if print_ not in self.known:
                self.from_wrapped += 1
                return self._params(print_)
        self.from_rest += 1
        return self._params(self._random.choice(rest))

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Refuse: a parameter that is drawn alone could make the strategy illegal."""
        raise ValueError(f"{param_name} is no knob of this study, or has other values")

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Pass it on."""
        self.wrapped.before_trial(study, trial)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """Pass it on."""
        self.wrapped.after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        """Take new random numbers."""
        self.wrapped.reseed_rng()
        self._random.seed()

    def _draw(self, study: Study, trial: FrozenTrial) -> dict[str, Value]:
        space = self.wrapped.infer_relative_search_space(study, trial)
        params = self.wrapped.sample_relative(study, trial, space)
        for name, distribution in self._distributions.items():
            if name not in params:
                params[name] = self.wrapped.sample_independent(study, trial, name, distribution)
        return decode(params, self.space.target)

    def _params(self, print_: str) -> Params:
        return encode(self.space.at(print_), self.space.target)


class _Branches:
    """The strategies of a space as a tree, a level for each knob, to find a legal one near any other.

    The values of a knob that are legal depend on the knobs before it alone, so that walking down
    changes no more than it must.
    """

    def __init__(self, space: Space, rng: random.Random) -> None:
        self._rng = rng
        self._domains = {knob.name: knob.domain(space.target) for knob in KNOBS}
        self._root: dict[Value, Any] = {}
        for strategy in space.strategies:
            node = self._root
            for knob in KNOBS:
                node = node.setdefault(strategy[knob.name], {})

    def legal(self, strategy: Mapping[str, Value]) -> dict[str, Value]:
        """Return a strategy of the space with as many of these values as it allows, from the first knob on."""
        node, result = self._root, dict[str, Value]()
        for knob in KNOBS:
            value = self._nearest(knob, strategy[knob.name], list(node))
            result[knob.name], node = value, node[value]
        return result

    def _nearest(self, knob: Knob, wanted: Value, legal: list[Value]) -> Value:
        if wanted in legal:
            return wanted
        if not knob.ordinal:
            return self._rng.choice(legal)
        position = self._domains[knob.name].index
        return min(legal, key=lambda value: abs(position(value) - position(wanted)))
