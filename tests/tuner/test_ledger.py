"""What is known while a search runs, and that knowing more does not cost more time."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.tuner.made import CPU, CUDA, compiled, record_of, result_of, study_of, throughput_of
from tests.tuner.trials import parity
from tuner.kinds import Flag, Kind, Phase
from tuner.ledger import Ledger
from tuner.measured import CompileReport, GraphBreak
from tuner.outcome import Outcome
from tuner.parity import TOLERANCE
from tuner.record import StudyRecord, TrialRecord, standing
from tuner.space import Space, canonical, default_allowed, fingerprint
from tuner.units import GIB

BASELINE = canonical({})
CHECKPOINTING = canonical({"checkpointing": "every-block"})
LAYER = canonical({"mode": "default", "scope": "layer"})
SPACE = Space(CUDA, default_allowed(CUDA, include_slow=False))
ON_CPU = Space(CPU, default_allowed(CPU, include_slow=False))
LORA: dict[str, Any] = {"workload": study_of().workload.model_copy(update={"adapter": "lora"})}


def ledger(*records: TrialRecord, study: StudyRecord | None = None, **settings: Any) -> Ledger:
    return Ledger(study or study_of(), records, lambda _: None, **settings)


def test_what_stands() -> None:
    trial, proof = record_of(strategy=LAYER, tokens_per_s=2000.0), record_of(strategy=LAYER, role="proof")
    known = ledger(record_of(), trial)
    assert known.best() == trial and known.standing(LAYER) == trial
    known.add(proof)
    assert known.standing(LAYER) == proof and known.launches(trial.fingerprint) == [trial, proof]
    assert known.standing(CHECKPOINTING) is None and len(known.all_standing()) == 2
    known.add(record_of(Outcome.OOM, LAYER, role="proof"))
    best = known.best()
    assert best is not None and best.strategy == BASELINE, "the answer is not one from before"


def test_the_reference_for_parity() -> None:
    ran = record_of(result=result_of(parity=parity(loss=1.0)))
    lean = record_of(strategy=CHECKPOINTING, result=result_of(parity=parity(loss=2.0)))
    known = ledger(lean)
    assert known.reference(0, fingerprint(LAYER)) == parity(loss=2.0)
    assert known.reference(0, lean.fingerprint) is None, "nothing is compared with itself"
    known.add(ran)
    assert known.reference(0, lean.fingerprint) == parity(loss=1.0) and known.reference(0, ran.fingerprint) is None
    assert known.reference(1, fingerprint(LAYER)) is None, "other data"
    died = ledger(record_of(Outcome.OOM), lean)
    assert died.reference(0, fingerprint(LAYER)) == parity(loss=2.0)


def test_nothing_fits_is_known_from_two_leanest_or_from_loading() -> None:
    oom = [record_of(Outcome.OOM, s, limit_bytes=23 * GIB, phase=Phase.FIRST_STEP) for s in (BASELINE, CHECKPOINTING)]
    whole = record_of(Outcome.OOM, {"mode": "default", "checkpointing": "every-block"}, limit_bytes=23 * GIB)
    study = study_of(**LORA)
    assert ledger(*oom, study=study).nothing_fits() is None
    assert ledger(*oom, study=study, eager_only=True).nothing_fits() == "the leanest strategies ran out of memory"
    assert ledger(*oom, whole, study=study).nothing_fits() == "the leanest strategies ran out of memory"
    loading = record_of(Outcome.OOM, LAYER, limit_bytes=23 * GIB, phase=Phase.LOAD)
    assert ledger(loading).nothing_fits() == "out of memory in load, and no knob changes that"
    assert ledger(loading, record_of()).nothing_fits() is None, "something fits"


def alike(outcome: Outcome, *recipes: dict[str, Any], kind: Kind | None = None) -> list[TrialRecord]:
    return [record_of(outcome, s, kind=kind, role="retry") for s in (BASELINE, CHECKPOINTING, *recipes)]


AMB = {**LAYER, "activation_memory_budget": 0.9}
FIRST = (AMB, {**AMB, "mode": "reduce-overhead"}, {**LAYER, "checkpointing": "every-block"})
FIRST_ON_CPU = (AMB, {**LAYER, "checkpointing": "every-block"}, LAYER)


@pytest.mark.parametrize(("space", "recipes"), [(SPACE, FIRST), (ON_CPU, FIRST_ON_CPU)])
def test_references_and_recipes_that_ended_alike(space: Space, recipes: tuple[dict[str, Any], ...]) -> None:
    records = alike(Outcome.WRONG_RESULT, *recipes, kind=Kind.NAN)
    for count in range(2, 5):
        assert ledger(*records[:count], space=space).nothing_left_to_try() is None
    said = ledger(*records, space=space).nothing_left_to_try()
    assert said == "the references and the first 3 recipes all ended with wrong_result (nan)"
    assert ledger(*records, record_of(strategy={"micro_batch": 2}), space=space).nothing_left_to_try() is None
    other = record_of(Outcome.WRONG_RESULT, recipes[2], kind=Kind.NUMERICS)
    assert ledger(*records[:4], other, space=space).nothing_left_to_try() is None


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.OOM, Outcome.OVER_BUDGET])
def test_memory_and_success_are_no_common_cause(outcome: Outcome) -> None:
    records = [r.model_copy(update={"limit_bytes": 23 * GIB}) for r in alike(outcome, *FIRST)]
    assert ledger(*records, space=SPACE).nothing_left_to_try() is None


def test_fewer_recipes_than_that_are_no_common_cause() -> None:
    eager = Space(CUDA, {"mode": ("off",)})
    assert ledger(*alike(Outcome.UNSTABLE, *FIRST), space=eager).nothing_left_to_try() is None
    assert ledger(*alike(Outcome.UNSTABLE, *FIRST)).nothing_left_to_try() is None


def test_what_gives_the_same_is_told() -> None:
    told: list[str] = []
    report = CompileReport(graphs=1)
    broken = CompileReport(graphs=2, graph_breaks=(GraphBreak(site="a.py:1", reason="print", count=1),))
    ran = record_of(strategy=LAYER, result=result_of(compile=report))
    Ledger(study_of(), [record_of(), ran.model_copy(update={"outcome": Outcome.UNSTABLE})], told.append)
    Ledger(study_of(), [record_of(strategy=LAYER, result=result_of(compile=broken))], told.append)
    assert told == []
    Ledger(study_of(), [ran], told.append)
    assert told == [fingerprint({**LAYER, "fullgraph": True})]


def test_an_eager_run_is_judged_by_the_table_alone() -> None:
    def eager(strategy: dict[str, Any], off: float) -> TrialRecord:
        found = parity(gradient=(3.0, 4.0 + 5.0 * off))
        return record_of(strategy=strategy, result=result_of(parity=found, layers=2))

    known = ledger(eager({}, 0.0), eager({"checkpointing": "every-block"}, 0.06))
    precision = known.study.workload.precision
    assert known.tolerance(0, CHECKPOINTING) == TOLERANCE
    assert known.tolerance(0, LAYER)[precision].gradient == pytest.approx(0.12)
    known.add(eager({"micro_batch": 2}, 0.07))
    assert known.tolerance(0, canonical({"micro_batch": 4})) == TOLERANCE
    assert known.tolerance(0, LAYER)[precision].gradient == pytest.approx(0.14), "it is no answer from before"
    assert known.tolerance(1, LAYER) == TOLERANCE, "other data"


def test_eager_runs_are_compared_anew_only_where_one_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("tuner.ledger.eager_spread", lambda *given: asked.append(given))
    known = ledger(record_of())
    for _ in range(20):
        known.add(record_of(strategy=LAYER))
        known.tolerance(0, LAYER)
    assert len(asked) == 1
    known.add(record_of(strategy={"micro_batch": 2}))
    known.tolerance(0, LAYER)
    assert len(asked) == 2


def calls_of(work: Callable[[], object]) -> int:
    """Return how many functions `work` calls: as many on a busy machine as on an idle one."""
    count = 0

    def seen(_frame: object, event: str, _: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def costs_at(count: int) -> tuple[int, int, int]:
    """Return what it costs, in calls, to open so many records, to take one more, to ask for the best meanwhile."""
    result = result_of(throughput=throughput_of())
    strategies = itertools.islice(itertools.cycle(SPACE.strategies), count)
    made = [record_of(strategy=s, tokens_per_s=500.0 + i % 997, result=result) for i, s in enumerate(strategies)]
    opened: list[Ledger] = []
    opening = calls_of(lambda: opened.append(ledger(*made, space=SPACE)))
    known = opened[0]
    assert known.best() == max(standing(made, known.study.limit_bytes).values(), key=lambda r: r.tokens_per_s or 0)
    more = record_of(strategy=SPACE.strategies[0], tokens_per_s=400.0)

    def one_more() -> None:
        known.add(more)
        known.best()
        known.nothing_left_to_try()

    return opening, calls_of(one_more), calls_of(known.best)


def test_a_record_more_costs_a_moment_at_two_thousand() -> None:
    few, many = costs_at(200), costs_at(2000)
    assert many[0] < 20 * few[0], "opening it is not quadratic"
    assert many[1] < 20 * few[1] and many[1] < 20 * 2000, "a look at each record, not each against each"
    assert many[2] < 20, "while a trial runs it is asked for twenty times a second"


def test_an_out_of_memory_that_is_only_suspected_before_the_model_is_a_cause_like_others() -> None:
    guessed: dict[str, Any] = {"phase": Phase.START, "kind": Kind.SUSPECTED, "limit_bytes": 23 * GIB}
    one = ledger(record_of(Outcome.OOM, **guessed), space=SPACE)
    assert one.nothing_fits() is None and one.nothing_left_to_try() is None
    tried = [s for s in one._recipes() if s in SPACE][:3]
    all_ = ledger(*(record_of(Outcome.OOM, s, **guessed) for s in (BASELINE, CHECKPOINTING, *tried)), space=SPACE)
    assert "all ended with oom (suspected)" in (all_.nothing_left_to_try() or "")


def test_the_best_of_a_planned_run() -> None:
    whole, layer = compiled({"mode": "default"}, 2500.0, 60.0), compiled(LAYER, 2000.0, 10.0)
    assert ledger(whole, layer).best() == whole
    known = ledger(whole, layer, train_steps=100)
    assert known.best() == layer
    known.add(compiled(LAYER, 2000.0, 60.0, Flag.COLD, role="proof"))
    assert known.best() == whole, "compiled cold it costs as much"
