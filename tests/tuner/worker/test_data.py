"""The same sequences whatever the micro-batch; shares that sum to one; losses of any model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.models.small import Stack
from tests.tuner.worker.workloads import MODELS, shaped, users
from tuner.worker.data import IGNORED, Batches, Loss, StepBatch
from tuner.worker.load import load_model
from tuner.worker.user_code import UserCodeError
from tuner.workload import Lengths, Workload

CPU = torch.device("cpu")
VARIED = Lengths(kind="list", max=12, values=(3, 5, 12))


def batches(workload: Workload, micro_batch: int, seed: int = 0, model: nn.Module | None = None) -> Batches:
    return Batches(workload, model or Stack(), CPU, micro_batch, seed)


def sequences(step: StepBatch) -> list[list[int]]:
    """The tokens of every sequence, without padding."""
    found = []
    for micro_batch in step.micro_batches:
        ids, labels = micro_batch.batch["input_ids"], micro_batch.batch["labels"]
        found += [row[kept != IGNORED].tolist() for row, kept in zip(ids, labels, strict=True)]
    return found


@pytest.mark.parametrize("lengths", [Lengths.fixed(12), VARIED])
@pytest.mark.parametrize("micro_batch", [1, 2, 4])
def test_the_same_sequences_for_every_micro_batch(lengths: Lengths, micro_batch: int) -> None:
    workload = shaped(lengths=lengths)
    whole, parts = batches(workload, 8), batches(workload, micro_batch)
    for index in (0, 1):
        assert sequences(parts.step(index)) == sequences(whole.step(index))
        assert len(parts.step(index).micro_batches) == 8 // micro_batch


@pytest.mark.parametrize("workload", [shaped(lengths=VARIED, eval_batch_size=3), users("stack", eval_batch_size=3)])
def test_an_evaluation_is_the_same_for_every_micro_batch(workload: Workload) -> None:
    made = [batches(workload, micro_batch).evaluation() for micro_batch in (1, 4, 8)]
    assert {tuple(m.batch["input_ids"].shape) for m in made} == {(3, workload.lengths.max)}
    assert len({str(m.batch["input_ids"].tolist()) for m in made}) == 1


def test_steps_and_seeds_differ_and_repeat() -> None:
    made = batches(shaped(), 8)
    assert sequences(made.step(0)) != sequences(made.step(1))
    assert made.step(2) is made.step(0)
    assert sequences(batches(shaped(), 8, seed=1).step(0)) != sequences(made.step(0))
    assert sequences(batches(shaped(), 8).step(0)) == sequences(made.step(0))


def test_all_are_made_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    made = batches(shaped(lengths=VARIED), 2)
    made.prepare()
    monkeypatch.setattr(made, "_make", lambda _: pytest.fail("a step made its batch"))
    assert len({id(made.step(index)) for index in range(40)}) == 16


def test_lengths_that_vary_are_padded_and_masked() -> None:
    (micro_batch,) = batches(shaped(lengths=VARIED), 8).step(0).micro_batches
    mask, labels = micro_batch.batch["attention_mask"], micro_batch.batch["labels"]
    rows = mask.sum(dim=1).tolist()
    assert len(set(rows)) > 1 and set(rows) <= {3, 5, 12}
    assert torch.equal(labels == IGNORED, mask == 0)
    assert torch.equal(mask, mask.sort(dim=1, descending=True).values)  # padding lies on the right
    assert micro_batch.tokens == sum(rows)


def test_fixed_lengths_have_no_mask() -> None:
    assert set(batches(shaped(), 8).step(0).micro_batches[0].batch) == {"input_ids", "labels"}


@pytest.mark.parametrize("lengths", [Lengths.fixed(12), VARIED])
@pytest.mark.parametrize("micro_batch", [1, 2, 8])
def test_shares_sum_to_one(lengths: Lengths, micro_batch: int) -> None:
    step = batches(shaped(lengths=lengths), micro_batch).step(0)
    assert sum(m.share for m in step.micro_batches) == pytest.approx(1)
    trained = sum(int((m.batch["labels"][:, 1:] != IGNORED).sum()) for m in step.micro_batches)
    for part in step.micro_batches:
        assert float(part.trained) == trained
        assert part.share == pytest.approx(int((part.batch["labels"][:, 1:] != IGNORED).sum()) / trained)


def test_tokens_are_the_models_own() -> None:
    ids = batches(shaped(), 8, model=Stack()).step(0).micro_batches[0].batch["input_ids"]
    assert 24 < int(ids.max()) < 32  # the embedding's size: there is no vocab_size in its config


def test_warm_up_and_longest() -> None:
    made = batches(shaped(lengths=VARIED), 4)
    warmup = made.warmup(2)
    assert warmup.batch["input_ids"].shape == (2, 12) and warmup.share == 1.0
    longest = made.longest()
    assert [m.batch["input_ids"].shape for m in longest.micro_batches] == [(4, 12), (4, 12)]
    assert longest.tokens == 8 * 12 and sum(m.share for m in longest.micro_batches) == 1.0


def test_batches_of_the_users() -> None:
    workload = users(batch_fn=f"{MODELS}:ones", lengths=VARIED)
    (micro_batch,) = batches(workload, 8).step(0).micro_batches
    assert torch.equal(micro_batch.batch["input_ids"], torch.ones(8, 12, dtype=torch.long))


@pytest.mark.parametrize("micro_batch", [1, 2, 4])
def test_a_users_function_gives_every_micro_batch_the_same_sequences(micro_batch: int) -> None:
    workload = users(batch_fn=f"{MODELS}:self_seeded")
    whole = sequences(batches(workload, 8).step(0))
    torch.rand(3)  # what was drawn before makes no difference
    step = batches(workload, micro_batch).step(0)
    assert sequences(step) == whole and len({tuple(row) for row in whole}) == 8
    assert [m.batch["input_ids"].shape[0] for m in step.micro_batches] == [micro_batch] * (8 // micro_batch)
    assert {m.batch["attention_mask"] for m in step.micro_batches} == {None}
    assert sequences(batches(workload, micro_batch).step(1)) != whole


def test_a_users_batch_without_rows_cannot_be_cut() -> None:
    packed = users(batch_fn=f"{MODELS}:packed")
    assert batches(packed, 8).step(0).micro_batches[0].batch["input_ids"].shape == (1, 128)
    with pytest.raises(UserCodeError, match=":packed: asked for 8 sequences it returned no tensor of 8 rows"):
        batches(packed, 2).step(0)


def test_batches_that_are_none() -> None:
    with pytest.raises(UserCodeError, match=":no_batch returned list, not a dict"):
        batches(users(batch_fn=f"{MODELS}:no_batch"), 8).step(0)


# Losses

MODELS_OF: dict[str, dict[str, Any]] = {
    "transformers": {},
    "users model": {"of_user": True},
    "users loss": {"of_user": True, "loss": f"{MODELS}:mean_loss"},
    "users loss of a transformers model": {"loss": f"{MODELS}:mean_loss"},
    "users batch for a transformers model": {"batch_fn": f"{MODELS}:ones"},
    "users loss and batch": {"of_user": True, "loss": f"{MODELS}:mean_loss", "batch_fn": f"{MODELS}:ones"},
    "adapters on a users model": {"of_user": True, "adapter": "lora"},
}


@pytest.mark.parametrize("name", MODELS_OF)
@pytest.mark.parametrize("micro_batch", [1, 4])
def test_losses_of_micro_batches_add_up_to_the_mean(name: str, micro_batch: int) -> None:
    changes = dict(MODELS_OF[name])
    lengths = Lengths.fixed(12) if "batch_fn" in changes else VARIED
    workload = (users if changes.pop("of_user", False) else shaped)(lengths=lengths, **changes)
    model = load_model(workload, CPU, 0)
    loss = Loss(workload, model)
    whole = batches(workload, 8, model=model).step(0)
    parts = batches(workload, micro_batch, model=model).step(0)
    mean = float(loss(whole.micro_batches[0]))
    assert sum(float(loss(m)) for m in parts.micro_batches) == pytest.approx(mean, rel=1e-5)
    assert 1 < mean < 10  # a mean, not a sum: about the logarithm of the vocabulary


def test_a_model_without_a_loss() -> None:
    class Silent(nn.Module):
        def forward(self, **_: Any) -> torch.Tensor:
            return torch.zeros(())

    (micro_batch,) = batches(users(), 8).step(0).micro_batches
    with pytest.raises(UserCodeError, match=":stack: the model returns no loss; give --loss"):
        Loss(users(), Silent())(micro_batch)


def test_a_loss_that_is_not_one_number() -> None:
    workload = users(loss=f"{MODELS}:loss_of_each")
    (micro_batch,) = batches(workload, 8).step(0).micro_batches
    with pytest.raises(UserCodeError, match=r":loss_of_each: the loss is a tensor of shape \(3,\), not one number"):
        Loss(workload, Stack())(micro_batch)


def test_a_loss_that_raises_is_the_users_in_an_eager_strategy() -> None:
    workload = users(loss=f"{MODELS}:raising_loss")
    (micro_batch,) = batches(workload, 8).step(0).micro_batches
    with pytest.raises(UserCodeError, match=":raising_loss raised KeyError: 'lables'"):
        Loss(workload, Stack())(micro_batch)
    with pytest.raises(KeyError):  # here it might be the compiler's doing
        Loss(workload, Stack(), compiled=True)(micro_batch)


def test_a_model_that_cannot_take_the_batch() -> None:
    workload = users()
    (micro_batch,) = batches(workload, 8).step(0).micro_batches
    micro_batch.batch["no_such_argument"] = 1
    with pytest.raises(UserCodeError, match=r":stack raised TypeError: .*no_such_argument"):
        Loss(workload, Stack())(micro_batch)


def test_what_the_device_says_is_not_the_users() -> None:
    workload = users(loss=f"{MODELS}:refused_loss")
    (micro_batch,) = batches(workload, 8).step(0).micro_batches
    with pytest.raises(RuntimeError, match="CUBLAS"):
        Loss(workload, Stack())(micro_batch)
