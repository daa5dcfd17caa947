"""What the records say as a whole."""

from __future__ import annotations

from typing import Any

from strategies.recipes import leanest
from tests.tuner.made import WORKLOAD, record_of, study_of
from tuner.errors import ExitCode
from tuner.kinds import Kind, Phase
from tuner.outcome import Outcome
from tuner.units import GIB
from tuner.verdict import dies_while_loading, leanest_died, verdict
from tuner.workload import Adapter

EAGER, WHOLE = (dict(recipe.strategy) for recipe in leanest("full"))


def dead(strategy: dict[str, Any], **changes: Any) -> Any:
    return record_of(Outcome.OOM, strategy, **{"phase": Phase.FIRST_STEP, **changes})


def test_something_that_fits_is_an_answer() -> None:
    assert verdict(study_of(), [dead(EAGER), dead(WHOLE), record_of()]) is ExitCode.DONE


def test_nothing_is_known_of_no_records() -> None:
    assert verdict(study_of(), []) is ExitCode.NO_VERDICT


def test_both_leanest_must_have_died() -> None:
    assert verdict(study_of(), [dead(EAGER)]) is ExitCode.NO_VERDICT
    assert verdict(study_of(), [dead({}), dead({"mode": "default"})]) is ExitCode.NO_VERDICT
    assert verdict(study_of(), [dead(EAGER), dead(WHOLE)]) is ExitCode.NOTHING_FITS
    assert verdict(study_of(), [dead(EAGER), record_of(Outcome.OVER_BUDGET, WHOLE)]) is ExitCode.NOTHING_FITS


def test_without_compiling_the_eager_one_decides() -> None:
    assert verdict(study_of(), [dead(EAGER)], eager_only=True) is ExitCode.NOTHING_FITS
    assert verdict(study_of(), [dead(WHOLE)], eager_only=True) is ExitCode.NO_VERDICT


def test_another_cause_than_memory_is_no_verdict() -> None:
    broken = record_of(Outcome.COMPILE_ERROR, WHOLE)
    assert verdict(study_of(), [dead(EAGER), broken]) is ExitCode.NO_VERDICT


def test_the_leanest_depend_on_the_adapter() -> None:
    lora = study_of(workload=WORKLOAD.model_copy(update={"adapter": Adapter.LORA}))
    full = [dead(EAGER), dead(WHOLE)]
    assert leanest_died(study_of(), full) and not leanest_died(lora, full)
    assert leanest_died(lora, [dead(dict(recipe.strategy)) for recipe in leanest("lora")])


def test_out_of_memory_while_loading_decides_at_once() -> None:
    record = dead({}, phase=Phase.LOAD)
    assert verdict(study_of(), [record]) is ExitCode.NOTHING_FITS
    assert dies_while_loading(study_of(), [record]) is record
    assert dies_while_loading(study_of(), [dead({})]) is None


def test_what_died_under_a_lower_limit_says_nothing() -> None:
    smaller = {"limit_bytes": 10 * GIB, "cap_bytes": 9 * GIB}
    assert verdict(study_of(), [dead({}, phase=Phase.LOAD, **smaller)]) is ExitCode.NO_VERDICT
    assert verdict(study_of(), [dead(EAGER, **smaller), dead(WHOLE, **smaller)]) is ExitCode.NO_VERDICT


def test_what_is_only_suspected_before_the_model_is_there_ends_nothing() -> None:
    guessed: dict[str, Any] = {"phase": Phase.START, "kind": Kind.SUSPECTED}
    assert dies_while_loading(study_of(), [dead({}, **guessed)]) is None
    assert verdict(study_of(), [dead({}, **guessed)]) is ExitCode.NO_VERDICT
    assert not leanest_died(study_of(), [dead(EAGER, **guessed), dead(WHOLE, **guessed)])
    assert leanest_died(study_of(), [dead(EAGER, kind=Kind.SUSPECTED), dead(WHOLE, kind=Kind.SUSPECTED)])
