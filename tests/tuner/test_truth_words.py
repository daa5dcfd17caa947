"""What a person's training keeps, or loses."""

from __future__ import annotations

from tests.tuner.made import WORKLOAD, record_of, study_of
from tuner.outcome import Outcome
from tuner.truth_words import same_step, truth_notes
from tuner.workload import Lengths


def test_what_every_strategy_trains() -> None:
    said = same_step(WORKLOAD.model_copy(update={"batch_size": 8, "lengths": Lengths.fixed(2048)}))
    assert said == (
        "every strategy trains the same optimizer step: 8 sequences of 2048 tokens, "
        "loss normalised by the step's tokens"
    )


def test_a_winner_with_8bit_states_is_named_with_the_best_without() -> None:
    winner = record_of(Outcome.OK, {"optimizer": "adamw-8bit"}, tokens_per_s=2000.0)
    plain = record_of(Outcome.OK, {"mode": "default"}, tokens_per_s=1500.0)
    (said,) = truth_notes(study_of(), [winner, plain], [winner, plain])
    assert said == (
        "adamw-8bit changes the numbers of training (8-bit states); the best without it: mode=default, 1,500 tokens/s"
    )
    (alone,) = truth_notes(study_of(), [winner], [winner])
    assert "nothing without it is known to fit" in alone


def test_other_winners_change_nothing() -> None:
    plain = record_of(Outcome.OK, {"mode": "default"})
    assert truth_notes(study_of(), [plain], [plain]) == ()
    assert truth_notes(study_of(), [], []) == ()


def test_a_winner_measured_at_very_different_speeds() -> None:
    proof, first = record_of(role="proof", tokens_per_s=12_742.0), record_of(tokens_per_s=7_760.0)
    said = truth_notes(study_of(), [first, proof], [proof])
    assert said[0] == (
        "the winner was measured 2 times, at 7,760 to 12,742 tokens/s: "
        "the machine is uneven, and a ratio is no surer than that"
    )
    near = record_of(tokens_per_s=11_700.0)
    assert not any("measured" in sentence for sentence in truth_notes(study_of(), [near, proof], [proof]))
