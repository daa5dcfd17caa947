"""From YAML and flags to a spec; from a spec to workload, target and filters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strategies.knob import Target
from tuner.errors import WrongInput
from tuner.kinds import Phase
from tuner.spec import (
    StudySpec,
    inherited_environment,
    make_filter,
    make_target,
    make_workload,
    parse_lengths,
    read_spec,
)
from tuner.units import GIB
from tuner.workload import Adapter, Lengths, ModelKind, Precision, Workload

CPU = Target(device_type="cpu", batch_size=8, adapter="full", precision="32-true")
CARD = Target(device_type="cuda", batch_size=8, adapter="lora", multiprocessors=132)
FLAGS: dict[str, Any] = {
    "model": "tiny",
    "adapter": "lora",
    "seq_len": "256",
    "batch_size": "16",
    "drop_last": False,
    "eval": True,
    "eval_batch_size": "2",
    "budget_gb": "24",
    "time_budget": "1h30m",
    "trials": "7",
    "sampler": "random",
    "seed": "3",
    "fix": {"mode": "off"},
    "knob": {"checkpointing": ["off", "every-block"]},
    "deadline": {"first_step": "600"},
    "cold": True,
}
YAML = """\
model: tiny
adapter: lora
seq-len: 256
batch_size: 16
drop-last: false
eval: true
eval-batch-size: 2
budget-gb: 24
time-budget: 1h30m
trials: 7
sampler: random
seed: 3
fix: {mode: off}
knob:
  checkpointing: [off, every-block]
deadline: {first_step: 600}
cold: true
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    return path


def test_yaml_says_the_same_as_flags(tmp_path: Path) -> None:
    flags, file = read_spec(None, FLAGS), read_spec(written(tmp_path, YAML), {})
    assert flags.model_dump(exclude={"fix", "knob"}) == file.model_dump(exclude={"fix", "knob"})
    assert make_filter(flags, CPU) == make_filter(file, CPU), "off is a Boolean in YAML"
    assert file.deadline == {Phase.FIRST_STEP: 600.0}
    assert (file.budget_bytes, file.time_budget_seconds) == (24 * GIB, 5400.0)


def test_what_comes_late_in_training_is_part_of_the_workload() -> None:
    plain, _ = make_workload(read_spec(None, {"model": "tiny"}), "cpu")
    late, _ = make_workload(read_spec(None, {"model": "tiny", "drop_last": False, "eval": True}), "cpu")
    assert (plain.drop_last, plain.eval, late.drop_last, late.eval) == (True, False, False, True)
    assert plain.digest() != late.digest()
    assert "8 sequences per optimizer step, a partial last batch, with an evaluation of 8 at once, " in late.describe()
    assert "8 sequences per optimizer step, random" in plain.describe()


def test_an_evaluation_takes_as_many_sequences_in_every_strategy() -> None:
    def made(**flags: Any) -> tuple[Workload, list[str]]:
        return make_workload(read_spec(None, {"model": "tiny", **flags}), "cpu")

    usual, assumed = made(eval=True)
    assert usual.eval_batch_size == 8 and "eval-batch-size 8" in assumed
    four, assumed = made(eval=True, eval_batch_size="4")
    assert four.eval_batch_size == 4 and not any("eval" in line for line in assumed)
    assert four.digest() != usual.digest()
    with pytest.raises(WrongInput, match=r"^eval-batch-size: needs --eval"):
        made(eval_batch_size=4)
    with pytest.raises(WrongInput, match=r"eval-batch-size: .*greater than or equal to 1"):
        made(eval=True, eval_batch_size=0)


def test_the_evaluations_size_is_no_part_of_a_key_without_one() -> None:
    """Records from before it was there keep their key."""
    plain = Workload(model="tiny", model_kind=ModelKind.SHAPE, lengths=Lengths.fixed(128), batch_size=4)
    assert plain.digest() == "76938a116f5bbf7e08704c3c53664e68b9203d3eb9ac7148936b55be16a39b46"
    assert plain.model_copy(update={"eval_batch_size": 3}).digest() == plain.digest()


def test_flags_lie_over_the_file_and_pairs_are_joined(tmp_path: Path) -> None:
    path = written(tmp_path, YAML)
    found = read_spec(path, {"seed": "9", "fix": {"dynamic": "true"}, "knob": {"checkpointing": ["off"]}})
    assert found.seed == 9 and found.trials == 7
    assert found.fix == {"mode": False, "dynamic": "true"} and found.knob == {"checkpointing": ["off"]}


def test_nothing_is_needed() -> None:
    found = read_spec(None, {})
    assert found.budget_bytes is None and found.time_budget_seconds == 1800 and found.sampler == "tpe"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"budget_gb": "0"}, "budget-gb: must be a positive number of GiB, not '0'"),
        ({"budget_gb": "-3"}, "budget-gb: must be a positive number of GiB, not '-3'"),
        ({"budget_gb": "nan"}, "budget-gb: must be a positive number of GiB, not 'nan'"),
        ({"budget_gb": "inf"}, "budget-gb: must be a positive number of GiB, not 'inf'"),
        ({"budget_gb": "much"}, "budget-gb: must be a valid number, unable to parse string as a number, not 'much'"),
        ({"adapter": "lorra"}, "adapter: must be one of full, lora or qlora, not 'lorra' (did you mean 'lora'?)"),
        (
            {"precision": "bf16"},
            "precision: must be one of bf16-true, bf16-mixed, fp16-mixed or 32-true, not 'bf16' (did you mean 'bf16-true'?)",  # noqa: E501
        ),
        ({"sampler": "tpee"}, "sampler: must be one of tpe, gp or random, not 'tpee' (did you mean 'tpe'?)"),
        ({"init": "x"}, "init: must be one of random or pretrained, not 'x'"),
        ({"train_steps": "0"}, "train-steps: must be a whole number of 1 or more, not '0'"),
        ({"train_steps": "-5"}, "train-steps: must be a whole number of 1 or more, not '-5'"),
        ({"train_steps": "1.5"}, "train-steps: must be a whole number of 1 or more, not '1.5'"),
        ({"train_steps": True}, "train-steps: must be a whole number of 1 or more, not True"),
        ({"trials": "0"}, "trials: must be greater than or equal to 1, not '0'"),
        ({"trials": "few"}, "trials: must be a valid integer, unable to parse string as an integer, not 'few'"),
        ({"batch_size": "0"}, "batch-size: must be greater than or equal to 1, not '0'"),
        ({"seq_len": "1"}, "seq-len: must be greater than or equal to 2, not '1'"),
        ({"lora_rank": "0"}, "lora-rank: must be greater than or equal to 1, not '0'"),
        ({"dropout": "1"}, "dropout: must be less than 1, not '1'"),
        ({"dropout": "nan"}, "dropout: must be less than 1, not 'nan'"),
        ({"seed": "-1"}, "seed: must be greater than or equal to 0, not '-1'"),
        (
            {"time_budget": "soon"},
            "time-budget: a duration is a number with s, m, h or d behind it, as 90s, 15m or 1h30m, not 'soon'",
        ),
        ({"time_budget": "0s"}, "time-budget: must be longer than nothing, not '0s'"),
        (
            {"deadline": {"first_stp": "5"}},
            "deadline: must be one of start, load, warmup_batch, first_step, settle, steady or longest_batch, "
            "not 'first_stp' (did you mean 'first_step'?)",
        ),
        ({"deadline": {"load": "0"}}, "deadline: must be a positive number of seconds, not {'load': '0'}"),
        ({"deadline": {"load": "inf"}}, "deadline: must be a positive number of seconds, not {'load': 'inf'}"),
        ({"study": "a/b"}, "study: must be letters, digits, '.', '_' and '-', not 'a/b'"),
        ({"budgetgb": 3}, "budgetgb: is not a known key (did you mean 'budget_gb'?)"),
    ],
)
def test_wrong_values_are_one_sentence(flags: dict[str, Any], says: str) -> None:
    with pytest.raises(WrongInput) as caught:
        read_spec(None, flags)
    assert str(caught.value) == says


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("trails: 3", "trails: is not a known key (did you mean 'trials'?)"),
        ("- a\n- b", "spec: {path} must hold keys and values, such as `budget_gb: 24`"),
        ("", "spec: {path} must hold keys and values, such as `budget_gb: 24`"),
        ("a: [1\nb: 2", "spec: {path} is not YAML: it cannot be parsed at line 2"),
        ("fix: mode=off", "fix: must be a valid dictionary, not 'mode=off'"),
        ("model: 3", "model: must be a valid string, not 3"),
    ],
)
def test_wrong_files_are_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(WrongInput) as caught:
        read_spec(path, {})
    assert str(caught.value) == says.format(path=path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "none.yaml", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(WrongInput, match=f"spec: .* cannot be read .{why}"):
            read_spec(path, {})
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(WrongInput, match=r"spec: .* is not YAML"):
        read_spec(binary, {})


# The workload.


def test_on_a_card_the_default_is_the_7b_shape_with_lora() -> None:
    workload, assumed = make_workload(StudySpec(), "cuda")
    assert workload.model == "llama-7b" and workload.adapter is Adapter.LORA
    assert workload.precision is Precision.BF16_MIXED and workload.lengths == Lengths.fixed(2048)
    assert workload.batch_size == 8 and workload.layers == 32
    assert assumed == [
        *("model llama-7b", "adapter lora", "precision bf16-mixed", "seq-len 2048"),
        "random weights (memory and speed do not depend on them)",
    ]


def test_on_a_cpu_it_is_tiny_and_fully_trained() -> None:
    workload, _ = make_workload(StudySpec(), "cpu")
    assert workload.model == "tiny" and workload.adapter is Adapter.FULL
    assert workload.precision is Precision.FP32_TRUE and workload.lengths == Lengths.fixed(128)


@pytest.mark.parametrize(
    ("fields", "adapter", "precision"),
    [
        ({"model": "llama-1b"}, Adapter.FULL, Precision.BF16_TRUE),
        ({"model": "llama-1b", "adapter": "qlora"}, Adapter.QLORA, Precision.BF16_MIXED),
        ({"adapter": "full"}, Adapter.FULL, Precision.BF16_TRUE),
        ({"precision": "fp16-mixed"}, Adapter.LORA, Precision.FP16_MIXED),
    ],
)
def test_precision_follows_the_adapter(fields: dict[str, Any], adapter: Adapter, precision: Precision) -> None:
    workload, assumed = make_workload(StudySpec.model_validate(fields), "cuda")
    assert (workload.adapter, workload.precision) == (adapter, precision)
    assert not any(line.startswith(name + " ") for name in fields for line in assumed), "only what was not given"


def test_a_model_of_ones_own_has_2048_tokens_on_a_cpu_too() -> None:
    assert make_workload(StudySpec(model="llama-160m"), "cpu")[0].lengths.max == 2048


def test_functions_and_their_files_are_in_the_workload(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def net(): ...\ndef loss(model, batch): ...\ndef batch(d, m, n): ...\n")
    name = f"{tmp_path}/mine.py"
    spec = StudySpec(model=f"{name}:net", loss=f"{name}:loss", batch_fn=f"{name}:batch")
    before, _ = make_workload(spec, "cpu")
    assert before.model_kind is ModelKind.FUNCTION and before.loss == f"{name}:loss"
    assert before.batch_fn == f"{name}:batch" and len(before.sources) == 3
    (tmp_path / "mine.py").write_text("def net(): return 1\ndef loss(model, batch): ...\ndef batch(d, m, n): ...\n")
    assert make_workload(spec, "cpu")[0].digest() != before.digest()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"init": "pretrained"}, "init: is pretrained only where the model is a folder or a hub id, not 'pretrained'"),
        ({"lengths": "lognormal:mean=9,max=20", "seq_len": 64}, "seq-len: is not given beside lengths"),
        ({"model": "lama-7b"}, r"\(did you mean 'llama-7b'\?\)"),
        ({"loss": "nowhere.at.all:f"}, "loss: must be a module that can be found from here, not 'nowhere.at.all'"),
    ],
)
def test_workloads_that_cannot_be(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(WrongInput, match=says):
        make_workload(StudySpec.model_validate(fields), "cpu")


def test_lengths(tmp_path: Path) -> None:
    assert parse_lengths(None, 64)[0] == Lengths.fixed(64)
    found = parse_lengths("lognormal:mean=700,max=2048", 64)[0]
    assert found == Lengths(kind="lognormal", max=2048, mean=700.0, sigma=0.6)
    assert parse_lengths("lognormal:mean=700, max=2048, sigma=0.3", 64)[0].sigma == 0.3
    file = tmp_path / "lengths"
    file.write_text("12\n700 30\n")
    assert parse_lengths(str(file), 64)[0] == Lengths(kind="list", max=700, values=(12, 700, 30))


@pytest.mark.parametrize(
    "text",
    [
        *("lognormal:", "lognormal:mean=7", "lognormal:max=7", "lognormal:mean=9,max=8", "lognormal:mean=1,max=8"),
        *("lognormal:mean=7,max=inf", "lognormal:mean=nan,max=9", "lognormal:mean=7,max=9,sigma=0"),
        *("lognormal:mean=7,max=9,sgma=1", "lognormal:mean=a,max=9", "lognormal:mean=7=8,max=9"),
    ],
)
def test_lognormal_lengths_that_cannot_be(text: str) -> None:
    with pytest.raises(WrongInput, match=r"^lengths: must have the form lognormal:mean=700,max=2048"):
        parse_lengths(text, 64)


@pytest.mark.parametrize("content", [b"", b"12 one", b"1", b"-4 8", b"\xff\xfe", b"1.5"])
def test_files_of_lengths_that_cannot_be(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "lengths"
    file.write_bytes(content)
    with pytest.raises(WrongInput, match=r"^lengths: .* must hold whole numbers of 2 or more"):
        parse_lengths(str(file), 64)
    with pytest.raises(
        WrongInput, match=r"^lengths: must be lognormal:mean=M,max=N or a file of lengths \(No such file"
    ):
        parse_lengths(str(tmp_path / "none"), 64)


def test_the_target_has_what_rules_may_read() -> None:
    spec = StudySpec(model="olmoe-1b-7b", dropout=0.1, lengths="lognormal:mean=70,max=200", adapter=Adapter.LORA)
    found = make_target(make_workload(spec, "cuda")[0], "cuda", True, 132)
    assert found == Target(
        device_type="cuda",
        batch_size=8,
        adapter="lora",
        dropout=0.1,
        precision="bf16-mixed",
        lengths_vary=True,
        emulated=True,
        multiprocessors=132,
        layers=16,
        is_moe=True,
    )


# Filters.


def test_slow_modes_join_with_an_hour_or_when_asked_for() -> None:
    short, long = StudySpec(), StudySpec(time_budget="1h")
    assert make_filter(short, CARD)[0]["mode"] == ("off", "default", "reduce-overhead")
    allowed, notes = make_filter(long, CARD)
    assert allowed["mode"][-1] == "max-autotune" and len(allowed["mode"]) == 5
    assert len(notes) == 1 and "max-autotune modes take part" in notes[0]
    allowed, notes = make_filter(StudySpec(knob={"mode": ["all"]}), CARD)
    assert len(allowed["mode"]) == 5 and notes == []


def test_filters() -> None:
    spec = read_spec(None, {"fix": {"mode": "default"}, "knob": {"scope": ["whole", "layer"]}})
    allowed, _ = make_filter(spec, CPU)
    assert allowed["mode"] == ("default",) and set(allowed["scope"]) == {"layer", "whole"}
    assert allowed["micro_batch"] == (1, 2, 4, 8)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"fix": {"mod": "off"}}, r"^knob: must be one of mode, .*, not 'mod' \(did you mean 'mode'\?\)$"),
        ({"fix": {"mode": "defalt"}}, r"^mode: must be one of off, .*, not 'defalt' \(did you mean 'default'\?\)$"),
        ({"knob": {"micro_batch": [3]}}, "^micro_batch: must be one of 1, 2, 4, 8, not 3"),
        ({"fix": {"mode": "off"}, "knob": {"mode": ["off"]}}, "^mode: is either fixed or filtered, not both"),
        ({"fix": {"mode": ["off", "default"]}}, "^mode: must be fixed to one value"),
        ({"fix": {"mode": "all"}}, "^mode: must be fixed to one value, not 'all'"),
        ({"knob": {"mode": []}}, "^mode: needs at least one value"),
    ],
)
def test_filters_that_cannot_be(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(WrongInput, match=says):
        make_filter(StudySpec.model_validate(fields), CPU)


def test_workers_inherit_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_TEST_ANY", "1")
    assert inherited_environment()["TUNER_TEST_ANY"] == "1"


def test_a_card_excludes_a_budget(tmp_path: Path) -> None:
    assert read_spec(None, {"card": "A100 40"}).card == "a100-40"
    with pytest.raises(WrongInput, match=r"^card: is not given beside budget_gb"):
        read_spec(None, {"card": "l4", "budget_gb": 24})
    with pytest.raises(WrongInput, match=r"^card: must be one of"):
        read_spec(None, {"card": "l5"})


def test_a_flag_wins_over_the_files_budget_or_card(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("budget_gb: 24\n")
    found = read_spec(path, {"card": "l4"})
    assert (found.card, found.budget_gb) == ("l4", None)
    path.write_text("card: l4\n")
    found = read_spec(path, {"budget_gb": 24})
    assert (found.card, found.budget_gb) == (None, 24)
    assert read_spec(path, {}).card == "l4"
    path.write_text("card: l4\nbudget_gb: 24\n")
    with pytest.raises(WrongInput, match="is not given beside budget_gb"):
        read_spec(path, {})
