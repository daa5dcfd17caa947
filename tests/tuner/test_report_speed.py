"""What a report tells of one strategy's speed."""

from __future__ import annotations

from tests.tuner.made import compiled, record_of, result_of, throughput_of
from tests.tuner.test_break_even import BASELINE, LAYER, WHOLE, known
from tuner.break_even import BreakEven, Ranking
from tuner.kinds import Flag
from tuner.measured import CompileParts, CompileReport
from tuner.record import TrialRecord
from tuner.report_speed import Speed, Speeds


def speeds(*records: TrialRecord, train_steps: int | None = None) -> Speeds:
    return Speeds("cuda", known(*records), Ranking(train_steps, records))


def test_cold_and_warm_and_when_it_pays() -> None:
    parts = CompileParts(dynamo=3.0, triton=6.0)
    result = result_of(throughput=throughput_of(2000.0), compile=CompileReport(parts=parts))
    cold = compiled(LAYER, 2000.0, 10.0, Flag.COLD, role="proof", result=result)
    found = speeds(BASELINE, compiled(LAYER, 2010.0, 2.5, Flag.WARM), cold).of(cold)
    assert (found.compile_cold_seconds, found.compile_warm_seconds) == (10.0, 2.5)
    assert found.compile_parts == parts
    assert found.compile_words == "compile 10.0 s cold (dynamo 3.0, Triton 6.0), 2.5 s warm"
    assert found.break_even == BreakEven(steps=40, against="baseline")


def test_an_eager_strategy_has_none_of_it() -> None:
    assert speeds(BASELINE, compiled(LAYER, 2000.0, 10.0)).of(BASELINE) == Speed()


def test_how_well_the_step_is_known() -> None:
    through = throughput_of().model_copy(update={"median_within": 0.004})
    record = record_of(result=result_of(throughput=through))
    assert speeds(record).of(record).median_within == 0.004
    assert speeds().of(record_of()).median_within is None


def test_ratios_are_of_what_is_ranked_by() -> None:
    layer, whole = compiled(LAYER, 2000.0, 10.0), compiled(WHOLE, 2500.0, 60.0)
    by_throughput, by_run = speeds(layer, whole), speeds(layer, whole, train_steps=100)
    assert by_throughput.ratio(whole, layer) == 1.25 and by_throughput.of(layer).run_tokens_per_s is None
    assert by_run.of(layer).run_tokens_per_s == 50_000 / 35
    assert by_run.ratio(layer, whole) == (50_000 / 35) / (50_000 / 80)
    assert by_run.ratio(None, whole) is None and by_run.ratio(whole, record_of(tokens_per_s=None)) is None
