"""Records of another budget, as a study sees them."""

from __future__ import annotations

from tests.tuner.made import ENVIRONMENT, record_of, study_of
from tuner.kinds import Flag
from tuner.ledger import Ledger
from tuner.outcome import Outcome
from tuner.record import best
from tuner.report import summary
from tuner.seen import as_seen, is_emulated, seen
from tuner.units import GIB

WHOLE_CARD = study_of("whole", budget_bytes=80 * GIB, limit_bytes=77 * GIB)
PAGED = {"optimizer": "adamw-8bit-paged"}


def test_a_budget_below_the_card_is_emulated() -> None:
    assert is_emulated(study_of()) and not is_emulated(WHOLE_CARD)
    on_cpu = study_of(environment=ENVIRONMENT.model_copy(update={"device_type": "cpu"}))
    assert not is_emulated(on_cpu)


def test_a_card_is_emulated_by_every_other() -> None:
    near = {"device_name": "NVIDIA GeForce RTX 3090", "device_total_bytes": int(23.6 * GIB)}
    environment = ENVIRONMENT.model_copy(update=near)
    assert not is_emulated(study_of(environment=environment)), "24 GiB on a card of 23.6 is that card"
    assert not is_emulated(study_of(environment=environment, card="rtx3090"))
    assert is_emulated(study_of(environment=environment, card="rtx4090"))


def test_the_flag_is_that_of_the_study() -> None:
    there = record_of(study="whole", flags=(Flag.NOISY,), limit_bytes=77 * GIB)
    assert as_seen(study_of(), there).flags == (Flag.NOISY, Flag.EMULATED)
    here = record_of(flags=(Flag.EMULATED, Flag.NOISY))
    assert as_seen(WHOLE_CARD, here).flags == (Flag.NOISY,) and as_seen(study_of(), here) is here


def test_what_is_impossible_here_is_left_out() -> None:
    paged = record_of(strategy=PAGED, study="whole", tokens_per_s=9000.0)
    assert seen(study_of(), [paged]) == [] and seen(WHOLE_CARD, [paged]) == [paged]
    plain = record_of()
    ledger = Ledger(study_of(), [paged, plain], lambda _: None)
    assert ledger.best() == plain and ledger.launches(paged.fingerprint) == []
    report = summary(study_of(), [paged, plain])
    assert report.winner is not None and report.winner.tokens_per_s == 1000.0


def test_a_proof_under_a_larger_limit_proves_nothing_here() -> None:
    proof = record_of(study="whole", role="proof", limit_bytes=77 * GIB)
    found = best(seen(study_of(), [proof]), 23 * GIB)
    assert found is not None and found.role == "search" and found.uuid == proof.uuid
    assert not summary(study_of(), [proof]).proved and summary(WHOLE_CARD, [proof]).proved
    lower = record_of(study="small", role="proof", limit_bytes=21 * GIB)
    assert summary(study_of(), [lower]).proved, "under less it is one"
    failed = record_of(Outcome.OOM, study="whole", role="proof", limit_bytes=77 * GIB)
    assert seen(study_of(), [failed])[0].role == "proof"
    assert best(seen(study_of(), [record_of(), failed]), 23 * GIB) is None
