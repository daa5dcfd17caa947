"""When compiling is paid for, and what a whole run with it comes to."""

from __future__ import annotations

import pytest

from tests.tuner.made import compiled, ran, record_of
from tuner.break_even import BreakEven, CompileCosts, Ranking, break_even, reference
from tuner.kinds import Flag
from tuner.outcome import Outcome
from tuner.record import TrialRecord, best, feasible
from tuner.space import canonical, fingerprint
from tuner.units import GIB

CHECKPOINTING = {"checkpointing": "every-block"}
LAYER = {"mode": "default", "scope": "layer"}
WHOLE = {"mode": "default"}


def known(*records: TrialRecord) -> dict[str, TrialRecord]:
    return {record.fingerprint: record for record in records}


BASELINE = ran({}, 1000.0)  # 0.5 s a step
LEAN = ran(CHECKPOINTING, 625.0)  # 0.8 s


# The reference


def test_the_baseline_is_the_reference_where_it_ran_else_eager_with_checkpointing() -> None:
    assert reference(known(LEAN, BASELINE)) == ("baseline", BASELINE)
    died = record_of(Outcome.OOM, {})
    assert reference(known(died, LEAN)) == ("checkpointing", LEAN)
    assert reference(known(died, compiled(LAYER, 2000.0, 10.0))) is None


# Break-even


@pytest.mark.parametrize(
    ("tokens_per_s", "seconds", "steps"),
    [
        (2000.0, 10.0, 40),  # 0.25 s a step saves 0.25
        (2000.0, 10.01, 41),  # whole steps, and paid for at the end of the last
        (2000.0, 0.0, 0),
        (1000.0, 10.0, None),
        (900.0, 10.0, None),
    ],
)
def test_the_steps_that_pay(tokens_per_s: float, seconds: float, steps: int | None) -> None:
    record = compiled(LAYER, tokens_per_s, seconds, Flag.COLD)
    found = break_even(record, CompileCosts([record]), ("baseline", BASELINE))
    assert found == BreakEven(steps=steps, against="baseline")


def test_the_reference_decides_the_steps() -> None:
    record = compiled(LAYER, 2000.0, 11.0, Flag.COLD)
    found = break_even(record, CompileCosts([record]), reference(known(LEAN)))
    assert found == BreakEven(steps=20, against="checkpointing"), "0.55 s a step are saved"


def test_what_a_first_run_pays_is_the_cold_compile() -> None:
    search = compiled(LAYER, 2000.0, 2.0, Flag.WARM)
    proof = compiled(LAYER, 2000.0, 20.0, Flag.COLD, role="proof")
    again = compiled(LAYER, 2000.0, 1.0, Flag.WARM, role="run")
    costs = CompileCosts([search, proof, again])
    assert (costs.of(search).cold, costs.of(search).warm) == (proof, again)
    found = break_even(search, costs, ("baseline", BASELINE))
    assert found is not None and found.steps == 80
    found = break_even(search, CompileCosts([search]), ("baseline", BASELINE))
    assert found is not None and found.steps == 8, "warm is what is known"


def test_nothing_is_said_where_nothing_is_compiled_or_known() -> None:
    costs = CompileCosts([BASELINE, LEAN])
    assert break_even(LEAN, costs, ("baseline", BASELINE)) is None
    record = compiled(LAYER, 2000.0, 10.0)
    assert break_even(record, CompileCosts([record]), None) is None
    bare = record_of(strategy=LAYER, compile_seconds=10.0)
    assert break_even(bare, CompileCosts([bare]), ("baseline", record_of())) is None, "tokens of a step are not known"


# Ranking by a whole run


def test_a_short_run_prefers_what_compiles_little() -> None:
    whole, layer = compiled(WHOLE, 2500.0, 60.0, Flag.COLD), compiled(LAYER, 2000.0, 10.0, Flag.COLD)
    records = [BASELINE, whole, layer]
    order = {
        steps: [r.fingerprint for r in feasible(records, 23 * GIB, rate=Ranking(steps, records).rate)]
        for steps in (None, 10, 100, 2000)
    }
    base, slow, fast = BASELINE.fingerprint, whole.fingerprint, layer.fingerprint
    assert order == {
        None: [slow, fast, base],
        10: [base, fast, slow],  # 5 s, 12.5 s, 62 s
        100: [fast, base, slow],  # 50 s, 35 s, 80 s
        2000: [slow, fast, base],
    }
    winner = best(records, 23 * GIB, rate=Ranking(100, records).rate)
    assert winner == layer


def test_the_rate_is_tokens_over_all_seconds() -> None:
    layer = compiled(LAYER, 2000.0, 10.0, Flag.COLD)
    ranking = Ranking(100, [layer])
    assert ranking.rate(layer) == pytest.approx(100 * 500 / (10 + 100 * 0.25))
    assert ranking.rate(BASELINE) == pytest.approx(1000.0), "eager has nothing to pay"
    assert Ranking(None, [layer]).rate(layer) == 2000.0
    assert ranking.rate(record_of(tokens_per_s=9000.0)) == 0.0, "last: it cannot be told"


def test_a_warm_launch_is_ranked_with_what_its_strategy_costs_cold() -> None:
    warm, cold = compiled(LAYER, 2000.0, 1.0, Flag.WARM), compiled(LAYER, 1990.0, 10.0, Flag.COLD, role="run")
    ranking = Ranking(100, [warm])
    assert ranking.rate(warm) == pytest.approx(100 * 500 / (1 + 25))
    ranking.costs.seen(cold)
    assert ranking.rate(warm) == pytest.approx(100 * 500 / (10 + 25))


def test_costs_are_of_the_strategy_not_of_the_record() -> None:
    assert CompileCosts([compiled(LAYER, 2000.0, 10.0)]).of(compiled(WHOLE, 1.0, 1.0)).first_run is None
    assert fingerprint(canonical(LAYER)) == compiled(LAYER, 1.0, 1.0).fingerprint
