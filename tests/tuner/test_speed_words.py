"""Compile seconds in words."""

from __future__ import annotations

from tests.tuner.made import record_of, result_of
from tuner.break_even import BreakEven, CompileTimes
from tuner.measured import CompileParts, CompileReport
from tuner.record import TrialRecord
from tuner.speed_words import compile_words, pays_words

PARTS = CompileParts(dynamo=2.1, aot_autograd=3.02, inductor=5.5, triton=2.0, autotuning=0.01, graph_capture=0.6)


def took(seconds: float, parts: CompileParts | None = None) -> TrialRecord:
    result = result_of(compile=CompileReport(parts=parts))
    return record_of(strategy={"mode": "default"}, compile_seconds=seconds, result=result)


def test_cold_with_its_parts_and_warm_behind_it() -> None:
    words = compile_words(CompileTimes(cold=took(13.2, PARTS), warm=took(4.1, PARTS)), "cuda")
    assert words == (
        "compile 13.2 s cold (dynamo 2.1, AOT autograd 3.0, inductor 5.5, Triton 2.0, graph capture 0.6), 4.1 s warm"
    )


def test_without_a_card_kernels_are_c() -> None:
    assert "C++ compiler 2.0" in compile_words(CompileTimes(warm=took(4.1, PARTS)), "cpu")


def test_what_is_not_known_is_not_said() -> None:
    assert compile_words(CompileTimes(), "cuda") == ""
    assert compile_words(CompileTimes(unsaid=took(13.0)), "cuda") == "compile 13.0 s"
    assert compile_words(CompileTimes(cold=took(152.9)), "cuda") == "compile 2 m 33 s cold"
    both = CompileTimes(cold=took(13.0), unsaid=took(9.0), warm=took(2.0))
    assert compile_words(both, "cuda") == "compile 13.0 s cold, 2.0 s warm"


def test_when_it_pays() -> None:
    assert pays_words(BreakEven(steps=1234, against="baseline")) == "paid for after 1,234 steps against baseline"
    assert pays_words(None) == "when it pays is not known: no reference ran at full depth"
    never = BreakEven(steps=None, against="checkpointing")
    assert pays_words(never) == "never pays against checkpointing: it is no faster"
