"""D4: batches of changing length make dynamo compile again and again, and then not at all."""

from __future__ import annotations

import pytest

from tests.field_reports.running import LAYER, Ran, run, users
from tuner.kinds import Kind
from tuner.outcome import Outcome
from tuner.workload import Lengths

SCHEDULE = (17, 23, 31, 40, 44, 52, 57, 63, 71, 88, 96, 101)
pytestmark = pytest.mark.usefixtures("quick_compile")


def ran(dynamic: str, fullgraph: bool = False) -> Ran:
    lengths = Lengths(kind="list", max=max(SCHEDULE), values=SCHEDULE)
    return run(
        users("plain", lengths=lengths, batch_size=1),
        steady_steps=20,
        **LAYER,
        micro_batch=1,
        dynamic=dynamic,
        fullgraph=fullgraph,
    )


def ninth_length(found: Ran) -> int:
    """The step that brings the first length past dynamo's limit of eight graphs, counted from 1."""
    batches = found.trial.steps.batches
    steps = [batches.step(0), batches.longest(), *(batches.step(index) for index in range(1, 20))]
    lengths = [step.tokens for step in steps]
    return next(count for count in range(1, 20) if len(set(lengths[:count])) == 9)


def test_one_graph_a_length_ends_at_the_limit() -> None:
    found = ran("false")
    verdict, report = found.verdict(), found.result.compile
    assert (verdict.outcome, verdict.kind) == (Outcome.COMPILE_NOT_APPLIED, Kind.RECOMPILE_LIMIT)
    step = report.recompile_limit_step
    assert step is not None and step + 1 == ninth_length(found)
    assert f"the recompile limit was hit at step {step + 1}" in verdict.detail and "ran eager" in verdict.detail
    assert len(report.recompiles) >= 7 and all("size mismatch" in guard for guard in report.recompiles)
    assert found.result.throughput is None, "what ran eager in disguise is no data point"


def test_under_fullgraph_it_is_an_error_of_the_compiler() -> None:
    verdict = ran("false", fullgraph=True).verdict()
    assert (verdict.outcome, verdict.kind) == (Outcome.COMPILE_ERROR, Kind.RECOMPILE_LIMIT)


@pytest.mark.parametrize("dynamic", ["auto", "true"])
def test_with_dynamic_shapes_it_is_compiled_and_counts_real_tokens(dynamic: str) -> None:
    found = ran(dynamic)
    assert found.verdict().outcome is Outcome.OK
    assert found.result.compile.graphs <= 3 and not found.result.compile.recompile_limit_hit
    measured = found.result.throughput
    assert measured is not None and min(SCHEDULE) <= measured.tokens_per_step <= max(SCHEDULE)


def test_padding_is_not_counted() -> None:
    lengths = Lengths(kind="list", max=max(SCHEDULE), values=SCHEDULE)
    padded = run(users("plain", lengths=lengths, batch_size=8), micro_batch=8).result.throughput
    alone = run(users("plain", lengths=lengths, batch_size=8), micro_batch=1).result.throughput
    assert padded is not None and alone is not None
    assert padded.tokens_per_step < 8 * max(SCHEDULE) * 0.9 and alone.tokens_per_step < 8 * max(SCHEDULE) * 0.9
