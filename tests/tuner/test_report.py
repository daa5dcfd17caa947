"""The report of a study, from records alone."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from strategies.recipes import complete, leanest, recipes
from tests.tuner.made import compiled, ran, record_of, result_of, study_of, throughput_of
from tests.tuner.test_break_even import WHOLE
from tuner.errors import ExitCode
from tuner.kinds import Flag, Phase, Replay
from tuner.measured import Clocks
from tuner.outcome import Outcome
from tuner.record import TrialRecord
from tuner.report import Report, summary
from tuner.report_view import print_report
from tuner.units import GIB

BASELINE: dict[str, Any] = {}
CHECKPOINTING = {"checkpointing": "every-block"}
LAYER = {"mode": "default", "scope": "layer"}
BASELINE_RAN = ran({}, 1000.0, number=0)
GRAPHS = {"mode": "reduce-overhead", "scope": "layer"}


def searched() -> list[TrialRecord]:
    """A search in which the baseline died, and a compiled strategy won."""
    return [
        record_of(Outcome.OOM, BASELINE, number=0, source="reference: baseline", phase=Phase.SETTLE, detail="too much"),
        record_of(strategy=CHECKPOINTING, number=1, source="reference: checkpointing", tokens_per_s=500.0),
        record_of(strategy=LAYER, number=2, source="recipe: layer", tokens_per_s=1200.0, compile_seconds=13.0),
        record_of(strategy=GRAPHS, number=3, source="sampler: tpe", tokens_per_s=1500.0, compile_seconds=16.0),
        record_of(strategy=CHECKPOINTING | LAYER, number=4, source="sampler: tpe", tokens_per_s=800.0),
        record_of(strategy=LAYER | {"dynamic": "true"}, number=5, source="sampler: tpe", tokens_per_s=1100.0),
        record_of(strategy=LAYER | {"optimizer": "adamw-8bit"}, number=6, source="sampler: tpe", tokens_per_s=1000.0),
    ]


def labelled(report: Report, label: str) -> Any:
    return next(line for line in report.comparisons if label in line.labels)


def test_the_answer_is_one_sentence_with_its_figures() -> None:
    report = summary(study_of(), searched())
    assert report.exit_code is ExitCode.DONE
    assert report.answer.count(". ") == 0
    for part in (
        "24.00 GiB",
        "mode=reduce-overhead",
        "1,500 tokens/s",
        "3.00 times the best eager one measured",
        "not proved",
    ):
        assert part in report.answer
    assert "3.00 GiB to spare" in report.answer
    assert report.next_command == "tuner export --study s -o best.yaml"


def test_the_winner_is_compared_with_references_recipes_and_the_best_eager() -> None:
    report = summary(study_of(), searched())
    assert report.winner is not None and report.winner.trial == 3 and report.winner.winner_ratio == 1.0
    baseline = labelled(report, "reference: baseline")
    assert (baseline.outcome, baseline.winner_ratio, baseline.cause) == (Outcome.OOM, None, "out of memory in settle")
    eager = labelled(report, "best eager")
    assert eager.labels[0] == "reference: checkpointing" and eager.winner_ratio == 3.0
    assert labelled(report, "recipe: layer").winner_ratio == 1.25
    assert labelled(report, "recipe: layer").compile_seconds == 13.0


def test_a_recipe_that_a_sampler_found_is_still_that_recipe() -> None:
    record = record_of(strategy=LAYER, source="sampler: tpe")
    assert labelled(summary(study_of(), [record]), "recipe: layer").outcome is Outcome.OK


def test_a_recipe_at_the_largest_micro_batch_is_told_by_its_record() -> None:
    name = next(recipe.name for recipe in recipes("full") if recipe.largest_micro_batch)
    largest = record_of(strategy=CHECKPOINTING | {"micro_batch": 4}, source=f"recipe: {name}", tokens_per_s=700.0)
    report = summary(study_of(), [*searched(), largest])
    assert labelled(report, f"recipe: {name}").tokens_per_s == 700.0
    assert "best eager" in labelled(report, f"recipe: {name}").labels


def test_three_runners_up_in_order() -> None:
    report = summary(study_of(), searched())
    assert [line.trial for line in report.runners_up] == [2, 5, 6]


def test_launches_are_counted_in_this_study_alone() -> None:
    elsewhere = record_of(strategy={"mode": "default"}, study="other", tokens_per_s=1600.0)
    report = summary(study_of(), [elsewhere, *searched()])
    assert report.launches == 7
    assert report.outcomes == {Outcome.OOM: 1, Outcome.OK: 6}
    assert report.winner is not None and report.winner.tokens_per_s == 1600.0, "its record decides here too"


def test_a_proof_stands_above_its_trial() -> None:
    proof = record_of(strategy=GRAPHS, role="proof", tokens_per_s=1490.0)
    report = summary(study_of(), [*searched(), proof])
    assert report.proved and "proved in a fresh process" in report.answer and "not proved" not in report.answer
    refuted = record_of(Outcome.OVER_BUDGET, GRAPHS, role="proof")
    report = summary(study_of(), [*searched(), refuted])
    assert report.winner is not None and report.winner.trial == 2 and not report.proved


def test_where_only_eager_fits_it_wins_and_is_said_to_be_eager() -> None:
    report = summary(study_of(), searched()[:2])
    assert "500 tokens/s (eager)" in report.answer
    report = summary(study_of(), [searched()[2]])
    assert "no eager strategy that was tried fits" in report.answer


def test_flags_of_shown_strategies_are_explained_once() -> None:
    flagged = [r.model_copy(update={"flags": (Flag.EMULATED, Flag.COLD)}) for r in searched()]
    report = summary(study_of(), flagged)
    assert len(report.flags) == 2
    assert any("emulated" in line and "a card" in line for line in report.flags)


def test_nothing_fits_says_why_and_what_would_have_to_give() -> None:
    dead = [
        record_of(Outcome.OOM, dict(r.strategy), number=n, phase=Phase.FIRST_STEP, needed_bytes=(24 + n) * GIB)
        for n, r in enumerate(leanest("full"))
    ]
    report = summary(study_of(), dead)
    assert report.exit_code is ExitCode.NOTHING_FITS and report.winner is None and report.next_command is None
    assert report.answer.startswith("Nothing fits in 24.00 GiB: the leanest")
    assert [(c.words, c.count) for c in report.causes] == [("out of memory in first_step", 2)]
    assert report.nearest_miss is not None and report.nearest_miss.missed_by_bytes == 2 * GIB
    gives = " ".join(report.would_have_to_give)
    assert "2.00 GiB more" in gives and "--adapter lora" in gives and "--seq-len" in gives
    assert "not tried" not in gives


@pytest.mark.parametrize(
    ("replay", "gives"),
    [
        (Replay.EVALUATION, "an evaluation of fewer (--eval-batch-size) or shorter sequences"),
        (Replay.PARTIAL, "whole batches alone (drop_last: true)"),
        (Replay.SKEWED, "a router that spreads its tokens better"),
    ],
)
def test_what_is_late_is_named_and_never_answered_by_a_smaller_training_batch(replay: Replay, gives: str) -> None:
    detail = f"the allocator was asked for 2.00 GiB more, {replay.words}"
    dead = [
        record_of(Outcome.OOM, dict(r.strategy), number=n, phase=Phase.LONGEST_BATCH, detail=detail)
        for n, r in enumerate(leanest("full"))
    ]
    report = summary(study_of(), dead)
    assert [(c.words, c.count) for c in report.causes] == [(f"out of memory {replay.words}", 2)]
    assert f"{gives}: training fits, and memory ran out {replay.words}" in report.would_have_to_give
    said = [line.replace("--eval-batch-size", "") for line in report.would_have_to_give]
    assert not any("batch-size" in line or "micro" in line for line in said)


def test_out_of_memory_while_loading_names_the_model() -> None:
    report = summary(study_of(), [record_of(Outcome.OOM, {}, number=0, phase=Phase.LOAD, detail="weights")])
    assert report.exit_code is ExitCode.NOTHING_FITS
    assert "in load, before any knob" in report.answer
    assert any("smaller model" in line for line in report.would_have_to_give)
    assert not any("--seq-len" in line for line in report.would_have_to_give)


def test_out_of_memory_before_the_model_blames_no_model() -> None:
    report = summary(study_of(), [record_of(Outcome.OOM, {}, number=0, phase=Phase.START, detail="libraries")])
    assert report.exit_code is ExitCode.NOTHING_FITS
    (line,) = report.would_have_to_give
    assert "larger --budget-gb" in line and "--adapter" not in line


def test_no_verdict_names_the_causes_and_what_was_not_tried() -> None:
    records = [
        record_of(Outcome.OOM, BASELINE, number=0, phase=Phase.SETTLE),
        record_of(Outcome.TIMEOUT, {"mode": "default"}, number=1, phase=Phase.FIRST_STEP),
    ]
    report = summary(study_of(), records)
    assert report.exit_code is ExitCode.NO_VERDICT
    assert "1 out of memory in settle, 1 timed out in first_step" in report.answer
    assert sum(line.startswith("not tried: ") for line in report.would_have_to_give) == 2


def test_time_or_the_machine_where_it_is_not_memory() -> None:
    late = summary(study_of(), [record_of(Outcome.TIMEOUT, LAYER, number=0, phase=Phase.FIRST_STEP)])
    assert "--time-budget" in late.would_have_to_give[0]
    broken = summary(study_of(), [record_of(Outcome.COMPILE_ERROR, LAYER, number=0)])
    assert "tuner doctor" in broken.would_have_to_give[0]


def test_a_study_without_launches() -> None:
    report = summary(study_of(), [])
    assert report.exit_code is ExitCode.NO_VERDICT and report.launches == 0
    assert report.answer == "No trial has ended yet in study s."
    assert "No launches yet." in printed(report)


def printed(report: Report) -> str:
    out = io.StringIO()
    print_report(report, Console(file=out, width=200))
    return out.getvalue()


def test_the_terminal_shows_answer_tables_and_command() -> None:
    records = [*searched(), record_of(strategy=GRAPHS, role="proof", tokens_per_s=1500.0, flags=(Flag.TIGHT,))]
    text = printed(summary(study_of(), records))
    assert text.startswith("Fastest of what fits in 24.00 GiB")
    for part in (
        "reference baseline",
        "out of memory in settle",
        "winner 3.00x",
        "compile 13.0 s",
        "proved  [tight]",
        "recipe layer, also runner-up",
    ):
        assert part in text
    assert "8 launches: 1 out of memory, 7 ok" in text
    assert "Export it: tuner export --study s -o best.yaml" in text


def test_eighty_columns_are_enough_for_the_figures() -> None:
    records = [*searched(), record_of(strategy=GRAPHS, role="proof", tokens_per_s=15000.0, compile_seconds=152.9)]
    rows = [row for row in printed(summary(study_of(), records)).splitlines() if "tokens/s  " in row]
    assert len(rows) == 6 and all(len(row.split("  proved")[0]) <= 80 for row in rows)


def test_a_strategy_is_shown_once_with_all_its_names() -> None:
    text = printed(summary(study_of(), searched()[1:2]))
    assert text.count("checkpointing=every-block\n") == 1
    assert "winner, also reference checkpointing and best eager\n  checkpointing=every-block\n" in text


def test_the_terminal_reads_no_markup_in_what_a_worker_said() -> None:
    record = record_of(Outcome.CRASH, LAYER, number=0, role="retry", detail="bad [/bold] tag [red]")
    assert "bad [/bold] tag [red]" in printed(summary(study_of(), [record]))


def test_the_nearest_miss_is_shown() -> None:
    text = printed(
        summary(study_of(), [record_of(Outcome.OOM, complete(CHECKPOINTING), number=0, needed_bytes=24 * GIB)])
    )
    assert "needs at least 25.00 GiB, at least 2.00 GiB more than the limit" in text
    assert "What would have to give:" in text


# A whole run


def priced() -> list[TrialRecord]:
    """A baseline of 0.5 s a step, a layer that compiles for 10 s, a whole model for 60 s."""
    return [BASELINE_RAN, compiled(LAYER, 2000.0, 10.0, Flag.COLD, number=1), compiled(WHOLE, 2500.0, 60.0, number=2)]


def test_the_terminal_says_what_compiling_costs_and_when_it_is_paid_for() -> None:
    text = printed(summary(study_of(), priced()))
    assert "  compile 10.0 s cold; paid for after 40 steps against baseline\n" in text
    assert "  compile 1 m 00 s; paid for after 200 steps against baseline\n" in text
    slower = compiled({"mode": "default", "scope": "mlp"}, 900.0, 5.0)
    assert "compile 5.0 s; never pays against baseline: it is no faster" in printed(
        summary(study_of(), [*priced(), slower])
    )
    alone = printed(summary(study_of(), priced()[1:]))
    assert "compile 10.0 s cold; when it pays is not known: no reference ran at full depth" in alone


def test_the_terminal_says_how_well_a_step_is_known() -> None:
    through = throughput_of().model_copy(update={"median_within": 0.0034})
    text = printed(summary(study_of(), [record_of(result=result_of(throughput=through))]))
    assert "3.00 to spare, step ±0.3%" in text


def test_the_terminal_says_what_held_the_clock_down() -> None:
    clocks = Clocks(sm_mhz=1755, temperature_c=61, power_w=655.2, throttled_by=("sw_power_cap",))
    through = throughput_of().model_copy(update={"clocks": clocks})
    text = printed(summary(study_of(), [record_of(result=result_of(throughput=through))]))
    assert "\n  clock held down by sw_power_cap (1,755 MHz, 61 °C, 655 W)\n" in text
    cool = throughput_of().model_copy(update={"clocks": Clocks(sm_mhz=1980)})
    assert "clock" not in printed(summary(study_of(), [record_of(result=result_of(throughput=cool))]))


def test_a_planned_run_changes_who_wins_and_the_answer_says_so() -> None:
    by_throughput = summary(study_of(), priced())
    assert by_throughput.winner is not None and by_throughput.winner.trial == 2
    report = summary(study_of(), priced(), train_steps=100)
    assert report.winner is not None and report.winner.trial == 1 and report.train_steps == 100
    assert report.answer.startswith(
        "Fastest of what fits in 24.00 GiB over a run of 100 steps, compiling included: mode=default, scope=layer, "
        "1,429 tokens/s over that run and 2,000 tokens/s once compiled (1.43 times the best eager one measured over "
        "that run), 20.00 GiB at its peak"
    )
    assert report.next_command == "tuner export --study s --train-steps 100 -o best.yaml"
    assert [line.trial for line in report.runners_up] == [0, 2]
    text = printed(report)
    assert "ranked by a run of 100 steps" in text and "1,429 tokens/s over the run; compile 10.0 s cold" in text
    ten = summary(study_of(), priced(), train_steps=10)
    assert "1,000 tokens/s (eager)" in ten.answer and "once compiled" not in ten.answer


def test_a_planned_run_changes_no_verdict() -> None:
    assert summary(study_of(), priced(), train_steps=1).exit_code is ExitCode.DONE
    assert summary(study_of(), [], train_steps=5).exit_code is ExitCode.NO_VERDICT
