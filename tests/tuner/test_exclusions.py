"""What is not proposed any more, and what is said about it."""

from __future__ import annotations

from typing import Any

from strategies.knob import Target
from tests.tuner.made import CPU, CUDA, record_of, result_of
from tuner.exclusions import Exclusions
from tuner.measured import CompileReport
from tuner.outcome import Outcome
from tuner.record import TrialRecord
from tuner.space import Space, default_allowed, fingerprint

LAYER: dict[str, Any] = {"mode": "default", "scope": "layer"}
FULL = {**LAYER, "fullgraph": True}


class Told(Exclusions):
    """Remembers what is left out."""

    def __init__(self, target: Target | None = CUDA) -> None:
        self.left_out: list[str] = []
        self.whole = None if target is None else Space(target, default_allowed(target, include_slow=False))
        super().__init__(self.left_out.append, self.whole)

    def of(self, **values: Any) -> set[str]:
        """The strategies of the space with these values."""
        assert self.whole is not None
        wanted = [s for s in self.whole.strategies if all(s[name] == value for name, value in values.items())]
        return {fingerprint(strategy) for strategy in wanted}


def broke(**strategy: Any) -> TrialRecord:
    return record_of(Outcome.GRAPH_BREAK, {**FULL, **strategy}, result=result_of())


def test_two_graph_breaks_end_fullgraph_for_their_scope_alone() -> None:
    told = Told()
    told.add(broke())
    told.add(broke())
    assert told.left_out == [] and told.news() == [], "one strategy that ran twice shows it once"
    told.add(broke(micro_batch=2))
    assert set(told.left_out) == told.of(fullgraph=True, scope="layer")
    assert told.news() == ["fullgraph=true is not tried any more with scope=layer: 2 trials ended in a graph break"]
    told.add(broke(micro_batch=4))
    assert told.news() == [], "it is said once"


def test_breaks_of_different_scopes_are_not_added_up() -> None:
    told = Told()
    told.add(broke())
    told.add(broke(scope="whole"))
    assert told.left_out == []


def test_without_fullgraph_a_break_says_nothing_of_it() -> None:
    told = Told()
    for size in (1, 2):
        told.add(record_of(strategy={**LAYER, "micro_batch": size}, result=result_of(compile=CompileReport(graphs=0))))
    assert told.news() == []


def test_an_8bit_optimizer_without_effect_ends_both_of_them() -> None:
    told = Told(CUDA_FULL)
    nothing = result_of(no_effect={"optimizer": "optimizer: no tensor is large enough for 8-bit state"})
    told.add(record_of(strategy={"optimizer": "adamw-8bit"}, result=nothing))
    packed = told.of(optimizer="adamw-8bit") | told.of(optimizer="adamw-8bit-paged")
    assert len(packed) > 100 and set(told.left_out) == packed
    assert len(told.news()) == 1


def test_one_with_an_effect_ends_nothing() -> None:
    told = Told(CUDA_FULL)
    told.add(record_of(strategy={"optimizer": "adamw-8bit"}, result=result_of()))
    assert told.left_out == []


CUDA_FULL = Target(device_type="cuda", batch_size=4, adapter="full", multiprocessors=132)


def test_a_graph_mode_that_records_nothing_is_the_plain_one_and_two_end_it_for_scope_and_sizes() -> None:
    told = Told()
    graphs = {**LAYER, "mode": "reduce-overhead"}
    nothing = result_of(no_effect={"mode": "mode: reduce-overhead recorded no CUDA graph (a tensor on the cpu)"})
    told.add(record_of(strategy=graphs, result=nothing))
    assert fingerprint(LAYER) in told.left_out and told.news() == []
    told.add(record_of(strategy={**graphs, "micro_batch": 2}, result=nothing))
    assert told.of(mode="reduce-overhead", scope="layer", dynamic="false") <= set(told.left_out)
    assert not told.of(mode="reduce-overhead", scope="layer", dynamic="true") & set(told.left_out)
    assert not told.of(mode="reduce-overhead", scope="whole") & set(told.left_out)
    assert len(told.news()) == 1


def planned(*regions: dict[str, Any], complete: bool = True, amb: float = 0.7) -> TrialRecord:
    # `graph_breaks`: else the same strategy with fullgraph would be left out too.
    plan = {"regions": [{"memory_budget": amb, "unchanged": False, **r} for r in regions], "complete": complete}
    strategy = {**LAYER, "activation_memory_budget": amb}
    report = CompileReport(graphs=2, plan=plan)
    return record_of(strategy=strategy, result=result_of(compile=report))


def budgets(told: Told) -> list[float]:
    values = (1.0, 0.9, 0.7, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)
    return [v for v in values if fingerprint({**LAYER, "activation_memory_budget": v}) in told.left_out]


def test_budgets_with_the_same_plan_in_every_region_are_the_same() -> None:
    told = Told()
    told.add(planned({"same_above": 0.35, "same_up_to": 1.0}, {"same_above": 0.0, "same_up_to": 0.8}))
    assert budgets(told) == [0.5, 0.4]


def test_a_budget_that_torch_ignores_is_none_at_all() -> None:
    told = Told()
    told.add(planned({"same_above": 0.0, "same_up_to": 1.0, "unchanged": True}))
    assert budgets(told) == [1.0, 0.9, 0.5, 0.4, 0.3, 0.2, 0.1]


def test_an_incomplete_plan_says_nothing() -> None:
    told = Told()
    told.add(planned({"same_above": 0.0, "same_up_to": 1.0}, complete=False))
    told.add(planned({"same_above": 0.0, "same_up_to": 1.0}, {}))
    told.add(planned())
    assert budgets(told) == []


def test_a_single_run_knows_no_space() -> None:
    told = Told(None)
    told.add(broke())
    told.add(broke(micro_batch=2))
    assert told.left_out == [] and told.news() == []


def test_on_a_cpu_too() -> None:
    told = Told(CPU)
    told.add(broke())
    told.add(broke(dynamic="true"))
    assert told.of(fullgraph=True, scope="layer") == set(told.left_out)
