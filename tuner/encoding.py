"""A strategy as Optuna's parameters, and back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from strategies.knob import Knob, Strategy, Target, Value
from strategies.registry import KNOBS
from tuner.errors import WrongInput

Params = dict[str, Value]
"""Optuna's: the value of a categorical knob, the index of an ordinal one's."""


def distributions(target: Target) -> dict[str, BaseDistribution]:
    """Return the full list of values of every knob, always: filters only restrict what is proposed."""
    return {knob.name: _distribution(knob, target) for knob in KNOBS}


def _distribution(knob: Knob, target: Target) -> BaseDistribution:
    domain = knob.domain(target)
    return IntDistribution(0, len(domain) - 1) if knob.ordinal else CategoricalDistribution(domain)


def encode(strategy: Strategy, target: Target) -> Params:
    """Return the parameters of a strategy that has a value for every knob.

    Raises:
        WrongInput: a value that the knob does not have on this target.
    """
    params: Params = {}
    for knob in KNOBS:
        domain, value = knob.domain(target), strategy[knob.name]
        if value not in domain:
            raise WrongInput(knob.name, "must be one of " + ", ".join(map(str, domain)), value)
        params[knob.name] = domain.index(value) if knob.ordinal else value
    return params


def decode(params: Mapping[str, Value], target: Target) -> dict[str, Value]:
    """Return the strategy, in registry order, that has these parameters; KeyError where one is missing."""
    return {k.name: k.domain(target)[int(params[k.name])] if k.ordinal else params[k.name] for k in KNOBS}


def knobs_digest(target: Target) -> str:
    """Return a hash of all that the parameters of a study mean: knobs, lists of values, versions."""
    lists = [[knob.name, knob.ordinal, knob.version, knob.domain(target)] for knob in KNOBS]
    return hashlib.sha256(json.dumps(lists).encode()).hexdigest()[:8]
