"""The legal canonical strategies of a target, enumerated; canonical form and fingerprint of a strategy."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cached_property

from strategies.knob import Conflict, Knob, Severity, Strategy, Target, Value
from strategies.registry import KNOBS, by_name
from strategies.spelling import read, spell
from tuner.errors import WrongInput, nearest

FINGERPRINT_LENGTH = 12
"""Hexadecimal digits: 48 bits, where a space has some ten thousand strategies."""

Allowed = Mapping[str, tuple[Value, ...]]
"""The values that may be proposed, by knob; a knob that is not named may take its whole domain."""


def canonical(strategy: Strategy) -> dict[str, Value]:
    """Return the strategy in registry order, with the baseline for every knob that is missing or not active.

    A missing knob counts as baseline, so that records from before it existed stay true.

    Raises:
        WrongInput: the strategy names no knob of ours.
    """
    for name in strategy:
        _knob(name)
    result: dict[str, Value] = {}
    for knob in KNOBS:
        result[knob.name] = _same_type(knob, strategy.get(knob.name, knob.baseline))
        if not knob.active(result):
            result[knob.name] = knob.baseline
    return result


def _same_type(knob: Knob, value: Value) -> Value:
    # 0 and 0.0 are equal, but their JSON and hence the fingerprint would differ.
    wanted = type(knob.baseline)
    return wanted(value) if isinstance(value, (int, float)) and wanted is not str else value


def fingerprint(strategy: Strategy) -> str:
    """Return a short SHA-256 of the canonical form's non-baseline values with their knobs' versions."""
    return _hash(canonical(strategy))


def _hash(strategy: Strategy) -> str:
    changed = {k.name: [strategy[k.name], k.version] for k in KNOBS if strategy[k.name] != k.baseline}
    text = json.dumps(changed, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:FINGERPRINT_LENGTH]


def conflict_of(strategy: Strategy, target: Target) -> Conflict | None:
    """Return the first conflict by registry order, an impossible one before all pointless ones; None: legal."""
    full = canonical(strategy)
    found = [c for knob in KNOBS if knob.active(full) and (c := knob.conflict(full, target)) is not None]
    hard = [c for c in found if c.severity is Severity.IMPOSSIBLE]
    return next(iter(hard or found), None)


def validate(strategy: Mapping[str, object], target: Target) -> dict[str, Value]:
    """Return the same knobs in registry order, with their values as the knobs spell them.

    Values may come from YAML or a command line: ``"0.5"`` is 0.5, and ``false`` is ``"false"`` or
    ``"off"`` where a knob has such a value.

    Raises:
        WrongInput: an unknown knob or value, with the nearest name.
    """
    values = {name: _read(_knob(name), given, target) for name, given in strategy.items()}
    return {knob.name: values[knob.name] for knob in KNOBS if knob.name in values}


def filter_values(name: str, given: Iterable[object], target: Target) -> tuple[Value, ...]:
    """Return the values that a filter leaves, in the knob's order; ``all`` stands for the whole domain.

    Raises:
        WrongInput: an unknown knob or value, or none at all.
    """
    knob, chosen = _knob(name), list(given)
    if not chosen:
        raise WrongInput(name, "needs at least one value")
    if chosen == ["all"]:
        return knob.domain(target)
    wanted = {_read(knob, value, target) for value in chosen}
    return tuple(value for value in knob.domain(target) if value in wanted)


def parse_filter(text: str, target: Target) -> tuple[str, tuple[Value, ...]]:
    """Return knob and values of ``scope=layer,whole`` or ``mode=all``.

    Raises:
        WrongInput: the text has another form, or names what is not there.
    """
    name, equals, values = text.partition("=")
    if not equals:
        raise WrongInput("filter", "must have the form knob=value or knob=value,value", text)
    name = name.strip()
    return name, filter_values(name, [part.strip() for part in values.split(",") if part.strip()], target)


def default_allowed(target: Target, include_slow: bool) -> dict[str, tuple[Value, ...]]:
    """Return the values that a search may propose unasked: all of them, or all but the slow ones."""
    return {k.name: tuple(v for v in k.domain(target) if include_slow or v not in k.slow) for k in KNOBS}


def describe(strategy: Strategy) -> str:
    """Return the non-baseline values for a person, as a command line spells them; ``baseline`` if there is none."""
    full = canonical(strategy)
    parts = [f"{k.name}={spell(full[k.name])}" for k in KNOBS if full[k.name] != k.baseline]
    return ", ".join(parts) or "baseline"


def _knob(name: str) -> Knob:
    try:
        return by_name(name)
    except KeyError:
        known = [knob.name for knob in KNOBS]
        raise WrongInput("knob", "must be one of " + ", ".join(known), name, nearest(name, known)) from None


def _read(knob: Knob, given: object, target: Target) -> Value:
    domain = knob.domain(target)
    value = read(given, domain)
    if value is None:
        known = [spell(v) for v in domain]
        raise WrongInput(knob.name, "must be one of " + ", ".join(known), given, nearest(str(given), known))
    return value


class Space:
    """The legal canonical strategies of a target, in the order of registry and values.

    `allowed` restricts a knob only where it is active: an inactive knob has its baseline.

    Raises:
        WrongInput: `allowed` names a knob or value that is not there.
    """

    def __init__(self, target: Target, allowed: Allowed) -> None:
        self.target = target
        self.allowed = {name: filter_values(name, values, target) for name, values in allowed.items()}
        self.strategies = _enumerate(target, self.allowed)

    @cached_property
    def index(self) -> dict[str, int]:
        """The position in `strategies` by fingerprint."""
        return {_hash(strategy): position for position, strategy in enumerate(self.strategies)}

    def at(self, fingerprint: str) -> dict[str, Value]:
        """Return the strategy of that fingerprint; KeyError where it is not in the space."""
        return self.strategies[self.index[fingerprint]]

    def __len__(self) -> int:
        return len(self.strategies)

    def __contains__(self, strategy: Strategy) -> bool:
        """Is the canonical form of `strategy` in the space?"""
        return fingerprint(strategy) in self.index


def _enumerate(target: Target, allowed: Allowed) -> list[dict[str, Value]]:
    # Branch by branch: a conflict cuts off all that would follow it.
    branches: list[dict[str, Value]] = [{}]
    for knob in KNOBS:
        values = allowed.get(knob.name, knob.domain(target))
        branches = [grown for branch in branches for grown in _grow(knob, branch, values, target)]
    return branches


def _grow(
    knob: Knob, branch: dict[str, Value], values: tuple[Value, ...], target: Target
) -> Iterable[dict[str, Value]]:
    resting = {**branch, knob.name: knob.baseline}
    if not knob.active(resting):
        return [resting]
    grown = [{**branch, knob.name: value} for value in values]
    return [strategy for strategy in grown if knob.conflict(strategy, target) is None]
