"""What a search tries first, in this order: the references, then the recipes; the sampler has the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from strategies.knob import Value
from strategies.recipes import REFERENCES, Recipe, complete, leanest, recipes
from tuner.outcome import Outcome
from tuner.record import Role, TrialRecord
from tuner.space import Space, canonical, conflict_of
from tuner.verdict import is_of_memory
from tuner.workload import Workload

NEAR = 1.15
"""How far above the predicted largest micro-batch one is still tried: the line is not exact."""

Standing = Callable[[dict[str, Value]], TrialRecord | None]
"""Of a strategy: the record that stands under this study's limit; None: not known."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """One strategy to be launched, and who proposed it."""

    strategy: dict[str, Value]
    source: str
    """``reference: baseline``, ``recipe: layer``, ``sampler: tpe``."""
    is_reference: bool = False
    role: Role = "search"
    workload: Workload | None = None
    """Of a twin test: the slice; None: the study's own."""
    twin: dict[str, Value] | None = None
    """Of a twin test: the strategy that it is compared with."""
    of_proof: bool = False
    """A proof, or what has to be known before it: the time that is kept back is for this."""
    trial: Any = None
    """The Optuna trial, where the sampler made the proposal; the launch asks for one otherwise."""


class Opening:
    """The fixed part of a search. Looks at what stands after each trial, so it is asked one at a time.

    The references are tried whatever the filters say: without one there is neither a ratio nor
    parity. Recipes are tried where the filters leave them.

    Args:
        seed: of the data; parity is taken against a reference with the same.
    """

    def __init__(self, space: Space, adapter: str, standing: Standing, seed: int = 0) -> None:
        self.space, self.adapter, self.standing, self.seed = space, adapter, standing, seed
        self._steps = self._run()

    def next(self) -> Proposal | None:
        """Return the next proposal; None: the opening is over. Each is launched before the next call."""
        return next(self._steps, None)

    def _run(self) -> Iterator[Proposal]:
        for recipe in REFERENCES:
            yield from self._try(complete(recipe.strategy), f"reference: {recipe.name}", is_reference=True)
        if self.references_died_of_memory():
            for recipe in leanest(self.adapter):
                yield from self._try(complete(recipe.strategy), f"recipe: {recipe.name}")
        for recipe in recipes(self.adapter):
            if recipe.largest_micro_batch:
                yield from self._largest(recipe)
            else:
                yield from self._try(complete(recipe.strategy), f"recipe: {recipe.name}")

    def _try(self, strategy: dict[str, Value], source: str, is_reference: bool = False) -> Iterator[Proposal]:
        strategy = canonical(strategy)
        known = self.standing(strategy)
        if known is not None and not (is_reference and self._is_of_other_data(known)):
            return
        legal = conflict_of(strategy, self.space.target) is None if is_reference else strategy in self.space
        if legal:
            yield Proposal(strategy, source, is_reference)

    def _is_of_other_data(self, record: TrialRecord) -> bool:
        """Did this reference run with another seed, and no reference with ours? Then nothing could be compared."""
        found = [self.standing(canonical(complete(recipe.strategy))) for recipe in REFERENCES]
        return record.outcome is Outcome.OK and not any(
            r is not None and r.outcome is Outcome.OK and r.seed == self.seed for r in found
        )

    def references_died_of_memory(self) -> bool:
        """Did both references run out of memory?"""
        found = [self.standing(canonical(complete(recipe.strategy))) for recipe in REFERENCES]
        return all(record is not None and is_of_memory(record) for record in found)

    def _largest(self, recipe: Recipe) -> Iterator[Proposal]:
        """The largest micro-batch that fits: two points, the line through their peaks, then steps down or up."""
        source = f"recipe: {recipe.name}"
        sizes = [v for v in self.space.allowed.get("micro_batch", ()) if isinstance(v, int)]
        tried: list[int] = []
        while (size := self._next_size(recipe, sizes, tried)) is not None:
            tried.append(size)
            yield from self._try(self._at(recipe, size), source)

    def _at(self, recipe: Recipe, size: int) -> dict[str, Value]:
        return canonical(complete({**recipe.strategy, "micro_batch": size}))

    def _next_size(self, recipe: Recipe, sizes: list[int], tried: list[int]) -> int | None:
        known = {size: self.standing(self._at(recipe, size)) for size in sizes}
        fits = {s: r.peak_device_bytes for s, r in known.items() if r is not None and r.outcome is Outcome.OK}
        dead = [s for s, r in known.items() if r is not None and r.outcome is not Outcome.OK]
        open_sizes = [s for s in sizes if known[s] is None and s not in tried]
        open_sizes = [s for s in open_sizes if s > max(fits, default=0) and s < min(dead, default=s + 1)]
        if not open_sizes:
            return None
        guess = _line(fits, self._limit(known))
        if guess is None:
            return open_sizes[0]
        below = [s for s in open_sizes if s <= guess]
        return max(below) if below else next((s for s in open_sizes if s <= guess * NEAR), None)

    @staticmethod
    def _limit(known: dict[int, TrialRecord | None]) -> int | None:
        return next((r.limit_bytes for r in known.values() if r is not None), None)


def _line(fits: dict[int, int | None], limit_bytes: int | None) -> float | None:
    """Return the micro-batch at which the line through the two largest measured peaks meets the limit."""
    points = sorted((size, peak) for size, peak in fits.items() if peak is not None)[-2:]
    if len(points) < 2 or limit_bytes is None:
        return None
    (s1, p1), (s2, p2) = points
    slope = (p2 - p1) / (s2 - s1)
    return None if slope <= 0 else s2 + (limit_bytes - p2) / slope
