"""What is exported, and how it is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from tests.tuner.made import compiled, ran, record_of, result_of, study_of, throughput_of
from tuner.errors import WrongInput
from tuner.export import choose, exported, load_plan, to_yaml, write
from tuner.kinds import Flag, Phase
from tuner.measured import PhaseRecord
from tuner.outcome import Outcome
from tuner.record import TrialRecord
from tuner.units import GIB

LAYER = {"mode": "default", "scope": "layer"}


def measured(**changes: object) -> TrialRecord:
    result = result_of(throughput=throughput_of(), micro_batch=2, accumulation=2)
    return record_of(**{"strategy": LAYER, "number": 3, "result": result, "seed": 7, **changes})


def test_everything_that_was_measured_is_there() -> None:
    record = measured(flags=(Flag.TIGHT,), compile_seconds=12.5, role="proof", number=None)
    plan = exported(study_of(), record)
    assert plan.proved and plan.flags == (Flag.TIGHT,) and plan.seed == 7 and plan.trial is None
    assert (plan.budget_bytes, plan.limit_bytes, plan.cap_bytes) == (24 * GIB, 23 * GIB, 22 * GIB)
    assert plan.measured.tokens_per_s == 1000.0 and plan.measured.step_seconds == 0.5
    assert plan.measured.compile_seconds == 12.5
    assert (plan.measured.micro_batch, plan.measured.accumulation) == (2, 2)
    assert plan.measured.peak_device_bytes_by_phase == {Phase.LOAD: 3 * GIB, Phase.FIRST_STEP: 5 * GIB}
    assert plan.measured.peak_phase is not None and plan.measured.peak_phase.phase is Phase.FIRST_STEP
    assert plan.environment == study_of().environment and plan.workload == study_of().workload
    assert plan.strategy == record.strategy


def test_a_record_of_another_budget_is_exported_for_the_studys_own() -> None:
    there = measured(study="big", role="proof", budget_bytes=80 * GIB, limit_bytes=77 * GIB, cap_bytes=75 * GIB)
    plan = exported(study_of(), there)
    assert (plan.budget_bytes, plan.limit_bytes, plan.cap_bytes) == (24 * GIB, 23 * GIB, 21 * GIB)
    assert not plan.proved and plan.flags == (Flag.EMULATED,) and plan.uuid == there.uuid
    assert (plan.study, plan.trial) == ("s", None)
    assert exported(study_of(), measured(cap_bytes=None)).cap_bytes is None
    chosen = choose(study_of(), [there], None)
    assert chosen is not None and chosen.role == "search" and chosen.uuid == there.uuid
    paged = measured(study="big", strategy={"optimizer": "adamw-8bit-paged"})
    assert choose(study_of(), [paged], None) is None


def test_the_environment_that_was_measured_is_handed_over() -> None:
    record = measured(process_environment={"OMP_NUM_THREADS": "7", "CUBLAS_WORKSPACE_CONFIG": ":4096:2:16:8"})
    plan = exported(study_of(), record)
    assert plan.process_environment == record.process_environment
    comments = [line for line in to_yaml(plan, record).splitlines() if line.startswith("#")]
    assert "#   export OMP_NUM_THREADS=7" in comments and "#   export CUBLAS_WORKSPACE_CONFIG=:4096:2:16:8" in comments
    assert not any("export" in line for line in to_yaml(exported(study_of(), measured()), measured()).splitlines())


def test_the_text_explains_each_knob_that_is_not_baseline(tmp_path: Path) -> None:
    record = measured(flags=(Flag.EMULATED,))
    text = to_yaml(exported(study_of(), record), record)
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert sum(line.startswith(("#   mode: ", "#   scope: ")) for line in comments) == 2
    assert not any("checkpointing:" in line for line in comments)
    assert any("emulated" in line and "a card" in line for line in comments)
    assert "1,000 tokens/s" in comments[0] and "not proved" in comments[0]
    assert yaml.safe_load(text)["strategy"]["mode"] == "default"
    write(text, tmp_path / "best.yaml")
    assert load_plan(tmp_path / "best.yaml") == exported(study_of(), record)


def test_a_baseline_that_wins_says_so() -> None:
    record = measured(strategy={})
    assert "# " + "  Nothing: the baseline is the fastest that fits." in to_yaml(exported(study_of(), record), record)


def test_the_best_is_chosen_with_its_proof_above_it() -> None:
    trial, proof = measured(tokens_per_s=1500.0), measured(role="proof", number=None, tokens_per_s=1490.0)
    slower = measured(strategy={}, number=1)
    assert choose(study_of(), [slower, trial], None) is trial
    assert choose(study_of(), [slower, trial, proof], None) is proof
    assert choose(study_of(), [slower, trial, proof], 3) is proof
    assert choose(study_of(), [slower, trial, proof], 1) is slower
    assert choose(study_of(), [record_of(Outcome.OOM)], None) is None


def test_a_trial_over_budget_can_be_exported_by_number() -> None:
    over = record_of(Outcome.OVER_BUDGET, LAYER, number=2)
    assert choose(study_of(), [over], 2) is over


def test_a_trial_without_figures_is_refused() -> None:
    dead = record_of(Outcome.OOM, LAYER, number=2, phase=Phase.SETTLE)
    with pytest.raises(
        WrongInput, match="trial: has no figures to export, it ended as: out of memory in settle, not 2"
    ):
        choose(study_of(), [dead], 2)


def test_a_trial_that_is_not_there_is_refused() -> None:
    with pytest.raises(WrongInput, match="trials 3 to 3"):
        choose(study_of(), [measured(), measured(study="other", number=9)], 9)
    with pytest.raises(WrongInput, match="no trial yet"):
        choose(study_of(), [], 0)


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "best.yaml"
    path.write_text("old")
    write("new\n", path)
    assert path.read_text() == "new\n"
    assert os.listdir(tmp_path) == ["best.yaml"]
    assert path.stat().st_mode & 0o044, "others may read it, as a plain open would let them"


def test_an_unwritable_folder_is_one_sentence_and_no_file(tmp_path: Path) -> None:
    with pytest.raises(WrongInput, match=r"output: .*cannot be written"):
        write("text", tmp_path / "none" / "best.yaml")
    (tmp_path / "folder").mkdir()
    with pytest.raises(WrongInput, match="Is a directory"):
        write("text", tmp_path / "folder")
    assert sorted(os.listdir(tmp_path)) == ["folder"]


def test_a_card_and_the_phase_of_the_peak_are_in_the_file(tmp_path: Path) -> None:
    steady = PhaseRecord(phase=Phase.STEADY, seconds=1.0, allocated_bytes=17 * GIB)
    first = PhaseRecord(phase=Phase.FIRST_STEP, seconds=1.0, allocated_bytes=19 * GIB)
    record = measured(result=result_of(throughput=throughput_of()).model_copy(update={"phases": (first, steady)}))
    record = record.model_copy(update={"flags": (Flag.EMULATED,)})
    path = tmp_path / "best.yaml"
    write(to_yaml(plan := exported(study_of(card="rtx4090"), record), record), path)
    text = path.read_text()
    assert "# Memory: peak in first_step, 2.00 GiB above steady." in text
    assert "# Searched for the card rtx4090; throughput was measured on a card." in text
    assert load_plan(path) == plan and plan.card == "rtx4090"


def test_how_well_the_step_is_known_and_when_compiling_is_paid_for() -> None:
    through = throughput_of(2000.0).model_copy(update={"median_within": 0.004})
    record = measured(
        tokens_per_s=2000.0, result=result_of(throughput=through), compile_seconds=10.0, flags=(Flag.COLD,)
    )
    records = [ran({}, 1000.0), record]
    plan = exported(study_of(), record, records)
    assert plan.measured.median_within == 0.004
    assert (plan.measured.break_even_steps, plan.measured.break_even_against) == (40, "baseline")
    assert "# Compiling: paid for after 40 steps against baseline." in to_yaml(plan, record)
    alone = exported(study_of(), record, [record])
    assert (alone.measured.break_even_steps, alone.measured.break_even_against) == (None, None)
    assert "# Compiling: when it pays is not known: no reference ran at full depth." in to_yaml(alone, record)
    slow = exported(study_of(), record, [ran({}, 3000.0), record])
    assert (slow.measured.break_even_steps, slow.measured.break_even_against) == (None, "baseline")
    assert "# Compiling: never pays against baseline: it is no faster." in to_yaml(slow, record)


def test_the_best_of_a_planned_run() -> None:
    baseline, layer = ran({}, 1000.0), compiled(LAYER, 2000.0, 10.0)
    records = [baseline, layer]
    assert choose(study_of(), records, None) == layer
    assert choose(study_of(), records, None, train_steps=41) == layer
    assert choose(study_of(), records, None, train_steps=39) == baseline
