"""What is next within the time, decided without launching anything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.tuner.made import CUDA, compiled, ran, record_of, study_of
from tests.tuner.searching import Clock, Heard
from tuner import chooser
from tuner.chooser import Chooser
from tuner.ledger import Ledger
from tuner.limits import limits
from tuner.outcome import Outcome
from tuner.record import TrialRecord
from tuner.records import Records
from tuner.requests import Requests
from tuner.second_runs import second_runs
from tuner.space import Space, canonical, default_allowed, fingerprint
from tuner.storage import Storage, open_storage
from tuner.study import open_study
from tuner.twins import Twins
from tuner.units import GIB

BASELINE = canonical({})
CHECKPOINTING = canonical({"checkpointing": "every-block"})
LAYER = canonical({"mode": "default", "scope": "layer"})
WHOLE = canonical({"mode": "default"})
STUDY = study_of(limit_bytes=23 * GIB)


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    with closing(open_storage(None, tmp_path)) as opened:
        yield opened


class Made:
    """A chooser with all that it asks."""

    def __init__(self, storage: Storage, records: list[TrialRecord], seconds: float = 3600.0, **changes: Any) -> None:
        self.clock, self.heard = Clock(), Heard()
        workload = STUDY.workload.model_copy(update={"dropout": changes.pop("dropout", 0.0)})
        study = STUDY.model_copy(update={"workload": workload})
        space = Space(CUDA, default_allowed(CUDA, include_slow=False) | changes.pop("allowed", {}))
        self.handle = open_study(
            storage,
            Records(storage.engine),
            name="s",
            target=CUDA,
            study_record=study,
            sampler="random",
            seed=0,
            space=space,
        )
        self.handle.known.update(record.fingerprint for record in records)
        planned = changes.pop("train_steps", None)
        self.ledger = Ledger(study, records, self.handle.known.add, space=space, train_steps=planned)
        self.requests = Requests(
            study="s",
            key="key",
            workload=STUDY.workload,
            device_type="cuda",
            device_uuid="GPU-1",
            limits=limits(24 * GIB, 80 * GIB, "cuda"),
            deadlines={},
            seed=0,
            root=Path("studies"),
        )
        self.twins = Twins(self.ledger.study, self.handle.target, self.requests, lambda _: [])
        usual: dict[str, Any] = {
            "twins": self.twins,
            "handle": self.handle,
            "ledger": self.ledger,
            "requests": self.requests,
            "listener": self.heard,
            "ends_at": self.clock.now + seconds,
            "trials": None,
            "sampler": "random",
            "again": [],
            "clock": self.clock,
        }
        self.chooser = Chooser(**usual | changes)


def opening(**changes: Any) -> list[TrialRecord]:
    """Records of all that the opening would propose."""
    lean = {"mode": "default", "checkpointing": "every-block"}
    amb = {**LAYER, "activation_memory_budget": 0.9}
    strategies: list[dict[str, Any]] = [
        BASELINE,
        CHECKPOINTING,
        LAYER,
        WHOLE,
        lean,
        amb,
        {**amb, "mode": "reduce-overhead"},
    ]
    strategies += [{**LAYER, "checkpointing": "every-block"}]
    strategies += [{**CHECKPOINTING, "micro_batch": n} for n in (2, 4)]
    return [record_of(strategy=s, **{"seconds": 10.0, "limit_bytes": 23 * GIB} | changes) for s in strategies]


def test_the_opening_then_the_sampler(storage: Storage) -> None:
    made = Made(storage, opening()[1:])
    first = made.chooser.next(False)
    assert first is not None and (first.source, first.is_reference, first.trial) == ("reference: baseline", True, None)
    sampled = made.chooser.next(False)
    assert sampled is not None and sampled.source == "sampler: random" and sampled.trial is not None
    assert sampled.strategy in made.handle.sampler.space


def test_the_opening_looks_at_each_outcome_before_it_goes_on(storage: Storage) -> None:
    made = Made(storage, [])
    assert made.chooser.next(True) is None and made.chooser.end is None
    assert made.chooser.next(False) is not None


def test_a_crash_comes_next_even_where_the_trials_are_all_launched(storage: Storage) -> None:
    made = Made(storage, [], trials=1)
    first = made.chooser.next(False)
    assert first is not None
    made.chooser.launches = 1
    made.chooser.crashed(first)
    retry = made.chooser.next(False)
    assert retry is not None and (retry.role, retry.source, retry.strategy) == ("retry", first.source, BASELINE)
    made.chooser.launches = 2
    assert made.chooser.next(False) is None and made.chooser.end == "all 1 trials were launched"


def test_a_launch_that_the_device_cost_is_not_counted(storage: Storage) -> None:
    made = Made(storage, opening(), trials=1)
    sampled = made.chooser.next(False)
    assert sampled is not None
    made.chooser.launches = 1
    made.chooser.not_clean(sampled)
    again = made.chooser.next(False)
    assert again is not None and again.strategy == sampled.strategy and again.trial is None, "its trial has ended"
    assert made.chooser.launches == 0


def test_what_was_interrupted_comes_first_within_the_filters(storage: Storage) -> None:
    cut = record_of(Outcome.INTERRUPTED, LAYER, source="recipe: layer")
    two = canonical({**LAYER, "micro_batch": 2})
    again = [CHECKPOINTING, LAYER, two]
    made = Made(storage, [cut], again=again, allowed={"mode": ("default",)})
    found = [made.chooser.next(False) for _ in range(3)]
    assert [p and (p.strategy, p.source) for p in found] == [
        *((LAYER, "recipe: layer"), (two, "resumed"), (BASELINE, "reference: baseline"))
    ]


def test_what_is_known_by_now_is_not_asked_again(storage: Storage) -> None:
    made = Made(storage, opening(), again=[LAYER])
    found = made.chooser.next(False)
    assert found is not None and found.strategy != LAYER


# Time.


def test_nothing_starts_that_cannot_end(storage: Storage) -> None:
    # Trials of 10 s count as 11; the proof of the best as 12.1.
    made = Made(storage, opening(), seconds=23.2)
    assert made.chooser.next(False) is not None
    made.clock.now += 1.2
    assert made.chooser.next(False) is None
    assert made.chooser.end == "the rest of the time budget is too short for another trial"
    assert all(t.state.name == "RUNNING" for t in made.handle.trials()), "nothing was asked in vain"


def test_what_is_too_long_now_is_not_known_for_that(storage: Storage) -> None:
    made = Made(storage, opening(), seconds=20)
    before = set(made.handle.known)
    assert made.chooser.next(False) is None and made.handle.known == before


def test_while_some_are_too_long_others_are_drawn(storage: Storage) -> None:
    records = opening(seconds=300.0)
    quick = [r.model_copy(update={"seconds": 10.0}) if r.strategy["mode"] == "off" else r for r in records]
    won = max(quick, key=lambda r: r.strategy["mode"] == "off")
    made = Made(storage, [*quick, won.model_copy(update={"uuid": "p", "role": "proof"})], seconds=300)
    for _ in range(5):
        found = made.chooser.next(False)
        assert found is not None and found.strategy["mode"] == "off"


def test_the_time_of_a_test_is_a_strategys_and_not_its_groups(storage: Storage) -> None:
    """Trials take 11 s and need a proof of 12; a test takes 90 s of its own."""
    fixed = {"mode": ("default",), "scope": ("layer",), "checkpointing": ("off",)}
    made = Made(storage, opening(), seconds=60, allowed=fixed | {"activation_memory_budget": (0.9, 1.0)}, dropout=0.05)
    names = [made.chooser.next(False) for _ in range(4)]
    assert {p.strategy["activation_memory_budget"] for p in names if p is not None} == {1.0}
    while made.chooser.next(False) is not None:
        pass
    assert made.chooser.end == "the rest of the time budget is too short for another trial"


def test_a_recipe_without_time_is_said_and_a_shorter_one_tried(storage: Storage) -> None:
    records = [r for r in opening() if r.strategy not in (WHOLE, LAYER)]
    slow = [r.model_copy(update={"seconds": 200.0}) for r in records if r.strategy["scope"] == "whole"]
    quick = [r for r in records if r.strategy["scope"] != "whole"]
    eager = [r.model_copy(update={"seconds": 1.0}) for r in slow if r.strategy["mode"] == "off"]
    compiled = [r for r in slow if r.strategy["mode"] != "off"]
    made = Made(storage, [*quick, *compiled, *eager], seconds=100)
    found = made.chooser.next(False)
    assert found is not None and found.strategy == LAYER
    made.ledger.add(record_of(strategy=LAYER, seconds=10.0))
    made.chooser.next(False)
    assert any(m.startswith("no time left for recipe: whole (mode=default): it takes") for m in made.heard.messages)


def test_the_first_reference_starts_in_any_time_while_nothing_is_known(storage: Storage) -> None:
    made = Made(storage, [], seconds=1)
    assert made.chooser.next(False) is not None
    known = Made(storage, [record_of(strategy=CHECKPOINTING, seconds=50.0)], seconds=10)
    assert known.chooser.next(False) is None


def test_the_time_of_the_proof_is_not_a_trials_to_use_up(storage: Storage) -> None:
    made = Made(storage, opening(), seconds=100)
    reserve = 11 * 1.1 + 5
    made.clock.now += 100 - reserve - 1
    assert not made.chooser.must_end("search") and not made.chooser.must_end("proof")
    made.clock.now += 2
    assert made.chooser.must_end("search") and not made.chooser.must_end("proof")
    made.clock.now += reserve
    assert made.chooser.must_end("proof") and made.chooser.seconds_left() == 0


def test_without_a_winner_or_with_a_proved_one_a_trial_may_use_it_all(storage: Storage) -> None:
    for records in ([], [record_of(role="proof")]):
        made = Made(storage, records, seconds=100)
        made.clock.now += 99
        assert not made.chooser.must_end("search")
        made.clock.now += 2
        assert made.chooser.must_end("search")


# The proof, and second runs.


def test_the_best_is_proved_once(storage: Storage) -> None:
    made = Made(storage, [record_of(), record_of(strategy=LAYER, tokens_per_s=2000.0, source="recipe: layer")])
    proof = made.chooser.proof(False)
    assert proof is not None and (proof.role, proof.strategy, proof.source) == ("proof", LAYER, "recipe: layer")
    assert made.chooser.proof(True) is None, "not beside another trial"
    made.ledger.add(record_of(strategy=LAYER, tokens_per_s=1900.0, role="proof"))
    assert made.chooser.proof(False) is None


def test_a_proof_that_crashed_is_tried_once_more(storage: Storage) -> None:
    made = Made(storage, [record_of(seconds=10.0)])
    for expected in (True, True, False):
        proof = made.chooser.proof(False)
        assert (proof is not None) is expected
        made.ledger.add(record_of(Outcome.CRASH, role="proof"))
    assert made.heard.messages == [], "it is out, so there is nothing to prove"


def test_a_proof_that_decides_nothing_is_not_tried_for_ever(storage: Storage) -> None:
    made = Made(storage, [record_of(seconds=10.0)])
    assert [made.chooser.proof(False) is not None for _ in range(4)] == [True, True, False, False]
    assert made.heard.messages == [
        "the proof decided nothing: the best strategy's figures are the search's, not a proof's"
    ]


def test_nothing_to_prove(storage: Storage) -> None:
    made = Made(storage, [record_of(Outcome.OOM)])
    assert made.chooser.proof(False) is None and made.heard.messages == []


def test_no_time_to_prove_is_said_once(storage: Storage) -> None:
    made = Made(storage, [record_of(seconds=100.0)], seconds=60)
    assert made.chooser.proof(False) is None and made.chooser.proof(False) is None
    assert made.heard.messages == [
        "no time is left for a proof, which takes about 1 m 50 s: "
        "the best strategy's figures are the search's, not a proof's"
    ]


def test_an_out_of_memory_that_needed_less_than_the_cap_is_run_once_more(storage: Storage) -> None:
    fields: dict[str, Any] = {"limit_bytes": 23 * GIB, "cap_bytes": 22 * GIB, "seconds": 10.0}
    fragmented = record_of(Outcome.OOM, LAYER, needed_bytes=20 * GIB, **fields)
    hopeless = record_of(Outcome.OOM, WHOLE, needed_bytes=40 * GIB, **fields)
    made = Made(storage, [fragmented, hopeless])
    found = made.chooser.undecided(False)
    assert found is not None and (found.strategy, found.role) == (LAYER, "retry")
    assert made.chooser.undecided(False) is None, "once"
    again = Made(storage, [fragmented, hopeless, fragmented.model_copy(update={"uuid": "b", "role": "retry"})])
    assert again.chooser.undecided(False) is None, "in another search too"
    short = Made(storage, [fragmented], seconds=5)
    assert short.chooser.undecided(False) is None


def fragmented(strategy: dict[str, Any]) -> TrialRecord:
    """Out of memory, though it needed less than the cap."""
    return record_of(Outcome.OOM, strategy, needed_bytes=20 * GIB, seconds=10.0)


def drawn(made: Made) -> list[dict[str, Any]]:
    """All that is to be run once more."""
    found = []
    while (proposal := made.chooser.undecided(False)) is not None:
        found.append(proposal.strategy)
    return found


def test_a_second_run_that_the_device_cost_is_made_all_the_same(storage: Storage) -> None:
    made = Made(storage, [*opening(), fragmented(WHOLE)], trials=0)
    first = made.chooser.undecided(False)
    assert first is not None and made.chooser.undecided(False) is None
    made.chooser.launches += 1
    made.chooser.not_clean(first)
    assert made.chooser.launches == 0 and made.chooser.undecided(False) == first


def test_second_runs_are_looked_for_anew_only_where_something_was_learned(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[object] = []
    monkeypatch.setattr(chooser, "second_runs", lambda *given: looked.append(given) or second_runs(*given))
    made = Made(storage, [*opening(), fragmented(WHOLE)])
    made.chooser.next(False)
    made.chooser.next(False)
    assert len(looked) == 1, "not for each proposal"
    made.ledger.add(fragmented({**WHOLE, "micro_batch": 2}))
    assert len(drawn(made)) == 2 and len(looked) == 2
    made.requests.learn([record_of(strategy=WHOLE, peak_reserved_bytes=10 * GIB)])
    assert drawn(made) == [] and len(looked) == 3, "the caps have moved"


def test_a_second_run_is_only_for_what_may_be_proposed_compiled_first(storage: Storage) -> None:
    records = [fragmented(CHECKPOINTING), fragmented(WHOLE), fragmented(LAYER)]
    assert drawn(Made(storage, records)) == [WHOLE, LAYER, CHECKPOINTING]
    assert drawn(Made(storage, records, allowed={"scope": ("layer",)})) == [LAYER, CHECKPOINTING]
    assert drawn(Made(storage, records, allowed={"mode": ("off",)})) == [CHECKPOINTING]


def test_no_eager_one_is_run_again_where_compiling_is_far_ahead(storage: Storage) -> None:
    def ran(tokens_per_s: float) -> list[TrialRecord]:
        return [record_of(seconds=10.0), record_of(strategy=LAYER, tokens_per_s=tokens_per_s, seconds=10.0)]

    again = [fragmented(CHECKPOINTING), fragmented(WHOLE)]
    assert drawn(Made(storage, [*ran(1299.0), *again])) == [WHOLE, CHECKPOINTING]
    assert drawn(Made(storage, [*ran(1300.0), *again])) == [WHOLE]
    assert drawn(Made(storage, [*ran(1300.0)[1:], *again])) == [WHOLE, CHECKPOINTING], "no eager one has run"


def test_a_compiled_one_is_far_ahead_only_over_the_run_that_is_planned(storage: Storage) -> None:
    records = [r.model_copy(update={"seconds": 10.0}) for r in (ran({}, 1000.0), compiled(LAYER, 2000.0, 60.0))]
    again = [fragmented(CHECKPOINTING), fragmented(WHOLE)]
    assert drawn(Made(storage, [*records, *again])) == [WHOLE]
    assert drawn(Made(storage, [*records, *again], train_steps=100)) == [WHOLE, CHECKPOINTING]


def test_time_is_kept_for_a_second_run_that_could_win(storage: Storage) -> None:
    graphs = canonical({"mode": "reduce-overhead", "scope": "layer"})

    def asked(left: float, *records: TrialRecord) -> tuple[str, ...]:
        made = Made(storage, [*opening(), record_of(Outcome.OOM, WHOLE, seconds=10.0, needed_bytes=20 * GIB), *records])
        made.chooser.launches, made.chooser.ends_at = 99, made.clock.now + left
        found = made.chooser.next(False)
        return () if found is None else (found.role, found.strategy["mode"], found.strategy["scope"])

    # A trial takes 11 s, the proof of the best 12 s: after another trial there would be none for the second run.
    assert asked(33.0) == ("retry", "default", "whole")
    assert asked(300.0)[:1] == ("search",), "there is time for both"
    assert asked(20.0) == (), "there is time for neither"
    faster = record_of(strategy=graphs, tokens_per_s=3000.0, seconds=10.0)
    assert asked(33.0, faster)[:1] == ("search",), "compiled without graphs, it would not catch up"


def test_an_exhausted_space(storage: Storage) -> None:
    only = {name: (value,) for name, value in LAYER.items()}
    made = Made(storage, opening(), allowed=only)
    assert made.chooser.next(False) is None and made.chooser.end == "all 1 strategies of the space are known"
    assert fingerprint(LAYER) in made.handle.known
