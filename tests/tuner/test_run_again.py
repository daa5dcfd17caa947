"""One strategy measured again: does it hold, and what does its record say beside the search's?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fakes import landscape
from tests.tuner.made import ENVIRONMENT, record_of, result_of, study_of, throughput_of
from tests.tuner.searching import Answer, Bench, Clock, End, FakeExecutor, Heard, Searched, bench
from tuner import run_again
from tuner.comparison import blocks_view, compare
from tuner.errors import ExitCode, Interrupted, MachineError, WrongInput
from tuner.export import exported
from tuner.kinds import Phase
from tuner.model_source import find_model
from tuner.outcome import Outcome
from tuner.plan import ExportedPlan
from tuner.record import TrialRecord, best
from tuner.records import Records
from tuner.requests import Requests
from tuner.run_again import check_sources, outside_bytes, run_deadlines, run_plan
from tuner.space import canonical
from tuner.storage import open_storage
from tuner.units import GIB, format_duration

__all__ = ["bench"]
LAYER = canonical({"mode": "default", "scope": "layer"})
MEASURED = throughput_of(1000.0)  # its p10 to p90 are 0.4 to 0.6 s about 0.5 s: a spread of 20 %


def plan_of(record: TrialRecord | None = None) -> ExportedPlan:
    found = record or record_of(strategy=LAYER, result=result_of(throughput=MEASURED))
    return exported(study_of(environment=ENVIRONMENT), found)


def test_the_files_cap_is_kept_on_the_same_card_and_budget() -> None:
    card = ENVIRONMENT.model_copy(update={"device_type": "cuda", "device_name": "C", "device_total_bytes": 24 * GIB})
    plan = plan_of().model_copy(
        update={"environment": card, "budget_bytes": 24 * GIB, "limit_bytes": 22 * GIB, "cap_bytes": 21 * GIB}
    )

    def outside(
        plan: ExportedPlan = plan, asked: int = 24 * GIB, named: str | None = None, **changes: Any
    ) -> int | None:
        bench = SimpleNamespace(environment=card.model_copy(update=changes), asked_bytes=asked, card=named)
        return outside_bytes(plan, bench)  # type: ignore[arg-type]

    assert outside() == GIB
    assert outside(asked=16 * GIB) is None and outside(named="l4") is None
    assert outside(plan.model_copy(update={"card": "l4"}), named="l4") == GIB
    assert outside(device_name="D") is None and outside(device_total_bytes=80 * GIB) is None
    assert outside(plan.model_copy(update={"cap_bytes": None})) is None


def test_a_run_has_the_cap_of_the_file(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple[str, int]] = []
    monkeypatch.setattr(Requests, "take_outside", lambda _, strategy, size: taken.append((strategy["mode"], size)))
    monkeypatch.setattr(run_again, "outside_bytes", lambda *_: 7)
    _, plan = searched(bench)
    run(bench, plan)
    assert taken == [("default", 7)]


# Runs.


def run(
    bench: Bench,
    plan: ExportedPlan,
    answer: Answer = lambda *_: None,
    stopped: Callable[[], bool] = lambda: False,
    flags: Mapping[str, Any] | None = None,
) -> tuple[TrialRecord, Heard]:
    heard, executor = Heard(), FakeExecutor(answer, Clock())
    bench.monkeypatch.setattr(run_again, "make_executor", lambda *_: executor)
    return run_plan(plan, flags or {}, {}, heard, stopped), heard


def searched(bench: Bench, **spec: Any) -> tuple[Searched, ExportedPlan]:
    found = bench.run(**{"trials": 3} | spec)
    leader = found.session.search.ledger.best()
    assert leader is not None
    return found, exported(found.session.study, leader)


def recorded(study: str) -> list[TrialRecord]:
    storage = open_storage(None, bench_folder())
    try:
        return Records(storage.engine).for_study(study)
    finally:
        storage.close()


def bench_folder() -> Path:
    return Path.cwd()


def test_a_run_is_kept_beside_the_study_that_it_came_from(bench: Bench) -> None:
    found, plan = searched(bench)
    record, heard = run(bench, plan)
    assert (record.role, record.number, record.study) == ("run", None, found.session.study.name)
    assert record.outcome is Outcome.OK and record.strategy == plan.strategy
    assert recorded(plan.study)[-1] == record and heard.begun == [
        ("run", "mode=default, scope=layer, activation_memory_budget=0.9", "run")
    ]
    assert compare(plan, record).exit_code is ExitCode.DONE


def test_a_cpu_has_no_allocator_to_take_a_snapshot_of(bench: Bench) -> None:
    _, plan = searched(bench)
    says = "memory-snapshot: is of a card's allocator: on a CPU there is none to take"
    with pytest.raises(WrongInput, match=says):
        run_plan(plan, {}, {}, Heard(), lambda: False, memory_snapshot=True)


def test_a_snapshot_is_asked_for_and_its_path_is_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    _, plan = searched(bench)
    executor, heard = FakeExecutor(lambda *_: None, Clock()), Heard()
    monkeypatch.setattr(run_again, "make_executor", lambda *_: executor)
    monkeypatch.setattr(run_again, "pick_device", lambda *_: SimpleNamespace(type="cuda"))
    blocks = ("4.00 GiB in 32 blocks, the largest 0.13 GiB: modeling_llama.py:253 forward", "1.0 MiB: mine.py:3 f")
    poll = FakeExecutor.poll

    def with_snapshot(self: FakeExecutor) -> list[Any]:
        update = {"snapshot": "memory.pickle", "largest_blocks": blocks}
        return [a.model_copy(update={"result": a.result and a.result.model_copy(update=update)}) for a in poll(self)]

    monkeypatch.setattr(FakeExecutor, "poll", with_snapshot)
    record = run_plan(plan, {}, {}, heard, lambda: False, memory_snapshot=True)
    ((request, folder),) = executor.requests
    assert request.memory_snapshot and not executor.cancelled
    assert f"the allocator's snapshot: {folder.path / 'memory.pickle'}" in heard.messages
    assert blocks_view(record) == ["What held memory, the largest first:", *(f"  {block}" for block in blocks)]
    assert blocks_view(record_of()) == []


def test_another_database_gets_a_study_for_runs(bench: Bench) -> None:
    _, plan = searched(bench)
    record, _ = run(bench, plan, flags={"storage": "sqlite:///else/where.db"})
    assert record.study == f"runs-{record.key[:8]}"
    again, _ = run(bench, plan, flags={"storage": "sqlite:///else/where.db"})
    assert again.study == record.study


def test_a_run_does_not_make_a_study_the_latest(bench: Bench) -> None:
    first, plan = searched(bench)
    second, _ = searched(bench, budget_gb=0.5)
    run(bench, plan)
    storage = open_storage(None, bench_folder())
    latest = Records(storage.engine).latest_study()
    storage.close()
    assert latest is not None and latest.name == second.session.study.name != first.session.study.name


@pytest.mark.parametrize(("time_budget", "role"), [("20m", "proof"), ("90s", "search")])
def test_a_run_that_is_slower_by_noise_displaces_nothing(bench: Bench, time_budget: str, role: str) -> None:
    # In 90 s there is no time for a proof: an unproved record stands.
    found, plan = searched(bench, answer=lambda *_: End(seconds=60), time_budget=time_budget, trials=1)
    before = found.session.search.ledger.best()
    assert before is not None and before.role == role
    for scale in (0.97, 1.03):
        run(bench, plan, lambda *_, s=scale: End(scale=s))
    assert best(recorded(plan.study), plan.limit_bytes) == before


def test_a_run_that_fails_refutes_what_was_not_proved() -> None:
    won = record_of(strategy=LAYER, tokens_per_s=2000.0)
    second = record_of(tokens_per_s=1000.0)
    refuted = record_of(Outcome.OOM, LAYER, role="run", limit_bytes=won.limit_bytes)
    assert best([won, second, refuted], won.limit_bytes) == second
    proof = record_of(strategy=LAYER, tokens_per_s=1990.0, role="proof")
    assert best([won, second, proof, refuted], won.limit_bytes) == proof, "nothing but a proof stands above a proof"


def test_a_run_alone_stands() -> None:
    alone = record_of(strategy=LAYER, role="run")
    assert best([alone], alone.limit_bytes) == alone
    failed = record_of(Outcome.OOM, LAYER, limit_bytes=alone.limit_bytes)
    assert best([failed, alone], alone.limit_bytes) == alone, "it is the latest that says whether it fits"


def test_parity_is_looked_at_where_the_reference_is_known(bench: Bench) -> None:
    _, plan = searched(bench)
    usual = landscape.result

    def wrong(*given: Any) -> dict[str, Any]:
        fields: dict[str, Any] = usual(*given)
        return fields | {"parity": fields["parity"] | {"gradient": [4.0, 3.0]}}

    bench.monkeypatch.setattr(landscape, "result", wrong)
    record, _ = run(bench, plan)
    assert record.outcome is Outcome.WRONG_RESULT and compare(plan, record).exit_code is ExitCode.DOES_NOT_HOLD


def test_a_pointless_one_is_run_with_a_message(bench: Bench) -> None:
    _, plan = searched(bench)
    graphs = plan.model_copy(update={"strategy": canonical({**LAYER, "mode": "reduce-overhead"})})
    record, heard = run(bench, graphs)
    assert record.outcome is Outcome.OK
    assert any(m.startswith("a search would skip this one: there are no CUDA graphs") for m in heard.messages)


def test_an_impossible_one_is_refused_before_anything_is_written(bench: Bench) -> None:
    _, plan = searched(bench)
    paged = plan.model_copy(update={"strategy": canonical({**LAYER, "optimizer": "adamw-8bit-paged"})})
    with pytest.raises(WrongInput, match=r"^strategy: cannot work here: there is no paged memory on a CPU") as caught:
        run(bench, paged, flags={"storage": "sqlite:///new/other.db"})
    assert "optimizer=adamw-8bit-paged" in str(caught.value) and caught.value.exit_code == 2
    assert not (bench_folder() / "new").exists()


def test_a_smaller_budget_is_the_runs_own(bench: Bench) -> None:
    _, plan = searched(bench)
    record, heard = run(bench, plan, flags={"budget_gb": "0.1"})
    assert heard.study.limit_bytes == record.limit_bytes < plan.limit_bytes, "the header has what the verdict has"
    assert record.outcome is Outcome.OOM and compare(plan, record).exit_code is ExitCode.DOES_NOT_HOLD
    kept = best(recorded(plan.study), plan.limit_bytes)
    assert kept is not None and kept.strategy == plan.strategy, "under the study's own limit nothing was refuted"


@pytest.mark.parametrize(
    ("planned", "flags", "asked"),
    [
        (None, {}, {"budget_gb": 24.0}),
        ("l4", {}, {"card": "l4"}),
        ("l4", {"budget_gb": 16}, {"budget_gb": 16}),
        (None, {"card": "t4"}, {"card": "t4"}),
    ],
)
def test_a_run_is_for_the_files_card_or_budget_unless_said(
    planned: str | None, flags: dict[str, Any], asked: dict[str, Any]
) -> None:
    plan = plan_of().model_copy(update={"budget_bytes": 24 * GIB, "card": planned})
    given = run_again._asked(plan, flags)
    assert {name: given[name] for name in ("budget_gb", "card") if given.get(name) is not None} == asked


def test_a_run_ends_in_time() -> None:
    record = record_of(strategy=LAYER, result=result_of(throughput=MEASURED), compile_seconds=150.0, role="proof")
    found = run_deadlines(plan_of(record))
    assert found[Phase.FIRST_STEP] == 600.0, "four times as slow as its file"
    assert found[Phase.STEADY] == 180.0 and set(found) == set(Phase)
    slow = record.model_copy(
        update={"result": result_of(throughput=MEASURED.model_copy(update={"step_seconds": 10.0}))}
    )
    assert run_deadlines(plan_of(slow))[Phase.STEADY] == 2000.0
    warm = record.model_copy(update={"role": "search", "compile_seconds": 5.0})
    assert run_deadlines(plan_of(warm))[Phase.FIRST_STEP] == 600.0, "compiled code came from the cache then"


def test_a_run_says_when_it_ends_at_the_latest(bench: Bench) -> None:
    _, plan = searched(bench)
    _, heard = run(bench, plan, flags={"deadline": {"load": 100}})
    latest = format_duration(sum((run_deadlines(plan) | {Phase.LOAD: 100.0}).values()))
    assert f"it is measured once, and ended after {latest} at the latest (--deadline)" in heard.messages


def test_a_signal_ends_it(bench: Bench) -> None:
    _, plan = searched(bench)
    with pytest.raises(Interrupted):
        run(bench, plan, lambda *_: End(seconds=9999), stopped=lambda: True)
    assert recorded(plan.study)[-1].outcome is Outcome.INTERRUPTED


def test_a_device_that_is_not_clean_says_nothing_of_the_strategy(bench: Bench) -> None:
    _, plan = searched(bench)
    with pytest.raises(MachineError, match=r"4711 train\.py"):
        run(bench, plan, lambda *_: End(foreign=True))


def test_the_users_own_code_raises(bench: Bench) -> None:
    _, plan = searched(bench)
    with pytest.raises(WrongInput, match=r"the user's code: fake\.Error"):
        run(bench, plan, lambda *_: End(failure=("user_code", "load")))
    assert recorded(plan.study)[-1].role == "proof", "it is no record"


def test_a_model_that_was_edited_is_another_one(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def build():\n    return 1\n")
    source = find_model(f"{file}:build")
    kept = {"model": source.model, "model_kind": source.kind, "config": None, "sources": source.sources}
    plan = plan_of()
    edited = plan.model_copy(update={"workload": plan.workload.model_copy(update=kept)})
    check_sources(edited)
    file.write_text("def build():\n    return 2\n")
    with pytest.raises(WrongInput, match=r"was measured with another text of model: mine\.py"):
        check_sources(edited)
