from __future__ import annotations

from typing import Any

import pytest

from strategies.spelling import read, spell

MODE = ("off", "default")
DYNAMIC = ("false", "true", "auto")
BUDGET = (1.0, 0.5, 0.25, 0.0)


@pytest.mark.parametrize(
    ("given", "values", "meant"),
    [
        ("default", MODE, "default"),
        (False, MODE, "off"),  # YAML 1.1 reads a bare off as False
        (True, DYNAMIC, "true"),
        (False, DYNAMIC, "false"),
        ("true", DYNAMIC, "true"),
        ("True", (False, True), True),
        ("off", (False, True), False),
        ("1", (False, True), True),
        (True, (False, True), True),
        ("0.5", BUDGET, 0.5),
        ("1/4", BUDGET, 0.25),
        (1, BUDGET, 1.0),
        ("0", BUDGET, 0.0),
        ("4", (1, 2, 4), 4),
        ("4.0", (1, 2, 4), 4),
    ],
)
def test_what_is_meant(given: Any, values: Any, meant: Any) -> None:
    value = read(given, values)
    assert value == meant
    assert type(value) is type(meant)


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ("on", MODE),
        (True, MODE),
        ("Default", MODE),
        ("maybe", (False, True)),
        (1, (False, True)),
        (True, BUDGET),
        ("nan", BUDGET),
        ("1/0", BUDGET),
        ("half", BUDGET),
        (0.45, BUDGET),
        (3, (1, 2, 4)),
        (None, BUDGET),
        (None, MODE),
        ([0.5], BUDGET),
        ({"a": 1}, (False, True)),
    ],
)
def test_what_means_nothing(given: Any, values: Any) -> None:
    assert read(given, values) is None


@pytest.mark.parametrize("value", ["default", True, False, 0.5, 0.0, 4])
def test_what_is_spelled_is_read(value: Any) -> None:
    assert read(spell(value), ("default", "other") if value == "default" else (value,)) == value
