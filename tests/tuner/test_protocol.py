"""What a record's key depends on."""

from __future__ import annotations

from tests.tuner.made import ENVIRONMENT, WORKLOAD
from tuner.environment import Environment

ON_CPU = Environment(device_name="a processor", device_type="cpu", device_total_bytes=1, versions={"torch": "2"})


def test_on_a_cpu_the_threads_are_in_the_key() -> None:
    keys = [ON_CPU.model_copy(update={"threads": n}).key(WORKLOAD) for n in (None, 1, 7)]
    assert len(set(keys)) == 3


def test_the_key_of_a_card_is_as_it_was() -> None:
    assert ENVIRONMENT.key(WORKLOAD) == ENVIRONMENT.model_copy(update={"threads": 7}).key(WORKLOAD)
    assert ENVIRONMENT.key(WORKLOAD) == "f6ceff41543c3ad1"
    assert ON_CPU.key(WORKLOAD) == "252b1bee4dacc175", "nor does a record from before lose its own"
