from __future__ import annotations

from typing import Any

import pytest

from strategies.micro_batch import KNOB


@pytest.mark.parametrize(
    ("batch_size", "divisors"), [(1, (1,)), (8, (1, 2, 4, 8)), (12, (1, 2, 3, 4, 6, 12)), (7, (1, 7))]
)
def test_the_domain_is_the_divisors(batch_size: int, divisors: tuple[int, ...], cuda: Any) -> None:
    assert KNOB.domain(cuda(batch_size=batch_size)) == divisors


def test_apply(build: Any) -> None:
    KNOB.apply(build, 4)
    assert build.micro_batch == 4
