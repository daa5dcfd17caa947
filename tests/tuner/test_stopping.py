"""Signals are noted, and nothing else happens."""

from __future__ import annotations

import os
import signal

import pytest

from tuner.stopping import SIGNALS, stop_signals


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_noted(number: signal.Signals) -> None:
    with stop_signals() as stopped:
        assert not stopped()
        os.kill(os.getpid(), number)
        assert stopped() and stopped()


def test_afterwards_all_is_as_before() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(ZeroDivisionError), stop_signals():
        assert [signal.getsignal(number) for number in SIGNALS] != before
        raise ZeroDivisionError
    assert [signal.getsignal(number) for number in SIGNALS] == before
    with stop_signals() as stopped:
        assert not stopped(), "what came before is not meant"
