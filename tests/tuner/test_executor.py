"""One slot, one device: submit, poll, cancel; a card that is not clean is charged to nobody."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.tuner.fake_nvml import IDLE, UUID, Entry, FakeNvml, card
from tests.tuner.trials import FAKES, request
from tuner.device import DeviceInfo, cpu_device, list_cards
from tuner.errors import MachineError
from tuner.executor import Executor, LocalExecutor
from tuner.kinds import Flag, KillReason, Phase
from tuner.launcher import Launcher
from tuner.outcome import Outcome, classify
from tuner.protocol import Attempt, TrialRequest
from tuner.trial_dir import TrialDir
from tuner.units import GIB

__all__ = ["card"]
Open = Callable[..., LocalExecutor]


@pytest.fixture
def folder(tmp_path: Path) -> TrialDir:
    return TrialDir.create(tmp_path, "study", "0")


@pytest.fixture
def open_executor(tmp_path: Path) -> Iterator[Open]:
    """Open an executor that runs fake workers."""
    with ExitStack() as stack:

        def open_executor(device: DeviceInfo, name: str = "ok", **settings: Any) -> LocalExecutor:
            launcher = Launcher(os.environ, grace_s=0.5)
            command = [sys.executable, str(FAKES / f"{name}.py")]
            executor = LocalExecutor(launcher, device, command=command, lock_folder=tmp_path / "locks", **settings)
            return stack.enter_context(executor)

        yield open_executor


def on_card(**fields: Any) -> TrialRequest:
    return request(device_type="cuda", device_uuid=UUID, **fields)


def poll_until_done(executor: Executor, seconds: float = 10) -> Attempt:
    deadline = time.monotonic() + seconds
    while not (ended := executor.poll()):
        assert time.monotonic() < deadline, "the trial did not end"
        time.sleep(0.01)
    assert len(ended) == 1
    return ended[0]


def test_a_trial_on_the_cpu(open_executor: Open, folder: TrialDir) -> None:
    executor = open_executor(cpu_device())
    asked = request()
    handle = executor.submit(asked, folder)
    assert executor.slots == 1 and set(executor.phases()) == {handle}
    with pytest.raises(RuntimeError, match="slot"):
        executor.submit(request(), folder)
    attempt = poll_until_done(executor)
    assert attempt.request.trial_uuid == handle == asked.trial_uuid
    assert classify(attempt).outcome is Outcome.OK
    assert executor.phases() == {} and executor.poll() == []


@pytest.mark.parametrize(
    ("name", "fields", "outcome", "phase"),
    [
        ("hang", {"deadlines": {"first_step": 0.3}}, Outcome.TIMEOUT, Phase.FIRST_STEP),
        ("segfault", {}, Outcome.CRASH, Phase.FIRST_STEP),
        ("half_result", {}, Outcome.CRASH, Phase.STEADY),
        ("no_result", {}, Outcome.CRASH, Phase.STEADY),
        ("hungry", {"limit_bytes": GIB // 8}, Outcome.OOM, Phase.FIRST_STEP),
        ("result_then_hang", {}, Outcome.OK, None),
    ],
)
def test_every_end_is_classified(
    open_executor: Open, folder: TrialDir, name: str, fields: dict[str, Any], outcome: Outcome, phase: Phase | None
) -> None:
    executor = open_executor(cpu_device(), name)
    executor.submit(request(**fields), folder)
    verdict = classify(poll_until_done(executor))
    assert (verdict.outcome, verdict.phase) == (outcome, phase)


def test_cancel(open_executor: Open, folder: TrialDir) -> None:
    executor = open_executor(cpu_device(), "hang")
    handle = executor.submit(request(), folder)
    executor.cancel("another")
    executor.cancel(handle)
    assert classify(poll_until_done(executor)).outcome is Outcome.INTERRUPTED


def test_leaving_ends_what_runs(open_executor: Open, folder: TrialDir) -> None:
    executor = open_executor(cpu_device(), "hang")
    executor.submit(request(), folder)
    trial = executor._trial
    assert trial is not None and trial.worker is not None
    executor.__exit__(None, None, None)
    assert not Path(f"/proc/{trial.worker.pid}").exists()


def test_the_card_is_locked_for_the_executors_life(card: FakeNvml, open_executor: Open) -> None:
    first = open_executor(list_cards()[0])
    with pytest.raises(MachineError, match="another search"):
        open_executor(list_cards()[0])
    first.__exit__(None, None, None)
    open_executor(list_cards()[0])


def test_a_computing_process_stops_the_start(card: FakeNvml, open_executor: Open) -> None:
    card.compute, card.names = [Entry(99, 4 * GIB)], {99: "train.py"}
    with pytest.raises(MachineError, match=r"99 train.py \(4.00 GiB\)"):
        open_executor(list_cards()[0])
    # And the lock is free again.
    open_executor(list_cards()[0], shared_card=True)


def test_a_desktop_does_not_stop_the_start(card: FakeNvml, open_executor: Open) -> None:
    card.graphics = [Entry(99, GIB)]
    open_executor(list_cards()[0])


def test_a_trial_on_a_card(card: FakeNvml, open_executor: Open, folder: TrialDir) -> None:
    executor = open_executor(list_cards()[0])
    card.used = IDLE + 1000
    executor.submit(on_card(), folder)
    card.used = IDLE + GIB // 2 + 1000
    time.sleep(0.3)
    card.used = IDLE
    attempt = poll_until_done(executor)
    assert max(attempt.device_peaks.values()) == GIB // 2
    assert classify(attempt).outcome is Outcome.OK and not attempt.shared_card


def test_what_others_hold_at_launch_is_in_the_request(card: FakeNvml, open_executor: Open, folder: TrialDir) -> None:
    executor = open_executor(list_cards()[0])
    card.used, card.graphics = IDLE + 2 * GIB, [Entry(99, 2 * GIB)]
    executor.submit(on_card(), folder)
    assert folder.read_request().base_line_bytes == 2 * GIB, "without the driver's own share, as CUDA counts"
    poll_until_done(executor)


def test_a_card_that_is_not_clean_is_waited_for(card: FakeNvml, open_executor: Open, folder: TrialDir) -> None:
    executor = open_executor(list_cards()[0], wait_s=5)
    card.used = IDLE + 2 * GIB
    executor.submit(on_card(), folder)
    for _ in range(30):
        assert executor.poll() == [] and executor.phases() == {}
        time.sleep(0.01)
    card.used = IDLE
    assert poll_until_done(executor).result is not None


def test_a_card_that_stays_unclean_is_not_charged(card: FakeNvml, open_executor: Open, folder: TrialDir) -> None:
    executor = open_executor(list_cards()[0], wait_s=0.3)
    card.used, card.compute, card.names = IDLE + 4 * GIB, [Entry(99, 4 * GIB)], {99: "train.py"}
    executor.submit(on_card(), folder)
    attempt = poll_until_done(executor)
    assert (attempt.kill_reason, attempt.exit_code, attempt.exit_signal) == (KillReason.FOREIGN, None, None)
    assert not folder.request_path.exists(), "nothing was launched"
    verdict = classify(attempt)
    assert verdict.outcome is Outcome.DEVICE_NOT_CLEAN and "99 train.py" in verdict.detail


def test_no_wait_at_all_still_gives_the_attempt(card: FakeNvml, open_executor: Open, folder: TrialDir) -> None:
    executor = open_executor(list_cards()[0], wait_s=-1)
    card.used = IDLE + 4 * GIB
    executor.submit(on_card(), folder)
    assert [attempt.kill_reason for attempt in executor.poll()] == [KillReason.FOREIGN]


def test_cancel_while_waiting(card: FakeNvml, open_executor: Open, folder: TrialDir) -> None:
    executor = open_executor(list_cards()[0], wait_s=60)
    card.used = IDLE + 4 * GIB
    executor.cancel(executor.submit(on_card(), folder))
    assert classify(poll_until_done(executor, 1)).outcome is Outcome.INTERRUPTED


def test_a_shared_card_is_flagged(card: FakeNvml, open_executor: Open, folder: TrialDir) -> None:
    executor = open_executor(list_cards()[0], shared_card=True, wait_s=0)
    card.used = IDLE + 4 * GIB
    executor.submit(on_card(), folder)
    card.used += GIB  # the worker's
    attempt = poll_until_done(executor)
    assert attempt.shared_card
    verdict = classify(attempt)
    assert verdict.outcome is Outcome.OK and Flag.SHARED_CARD in verdict.flags


def test_the_attempt_waits_until_the_card_is_as_before(card: FakeNvml, open_executor: Open, folder: TrialDir) -> None:
    executor = open_executor(list_cards()[0], "no_result", wait_s=5)
    executor.submit(on_card(), folder)
    card.used = IDLE + 2 * GIB
    trial = executor._trial
    assert trial is not None and trial.worker is not None and trial.worker.wait(5) is not None
    for _ in range(30):
        assert executor.poll() == []
        time.sleep(0.01)
    card.used = IDLE
    assert poll_until_done(executor, 1).exit_code == 0


@pytest.mark.parametrize("name", ["ok", "no_result", "out_of_memory"])
def test_who_came_during_a_trial_is_not_charged_to_it(
    card: FakeNvml, open_executor: Open, folder: TrialDir, name: str
) -> None:
    executor = open_executor(list_cards()[0], name, wait_s=0.4)
    executor.submit(on_card(), folder)
    # As in a container: nobody's number is one of ours, so that `foreign` can name no one.
    card.used, card.compute = IDLE + 4 * GIB, [Entry(4_190_001, GIB), Entry(4_190_002, 4 * GIB)]
    attempt = poll_until_done(executor)
    assert attempt.kill_reason is KillReason.FOREIGN
    verdict = classify(attempt)
    assert verdict.outcome is Outcome.DEVICE_NOT_CLEAN and "4.00 GiB more in use" in verdict.detail


def test_the_drivers_own_buffers_are_no_one(card: FakeNvml, open_executor: Open, folder: TrialDir) -> None:
    executor = open_executor(list_cards()[0], wait_s=0.4)
    executor.submit(on_card(), folder)
    card.used = IDLE + GIB // 5
    verdict = classify(poll_until_done(executor))
    assert verdict.outcome is Outcome.OK and not {Flag.SHARED_CARD, Flag.TIGHT} & set(verdict.flags)


def test_an_out_of_memory_on_a_clean_card_is_the_strategys(
    card: FakeNvml, open_executor: Open, folder: TrialDir
) -> None:
    executor = open_executor(list_cards()[0], "out_of_memory", wait_s=0.4)
    executor.submit(on_card(), folder)
    assert classify(poll_until_done(executor)).outcome is Outcome.OOM


def test_a_stopped_trial_stays_interrupted_whoever_is_there(
    card: FakeNvml, open_executor: Open, folder: TrialDir
) -> None:
    executor = open_executor(list_cards()[0], "hang", wait_s=60)
    handle = executor.submit(on_card(), folder)
    card.used = IDLE + 4 * GIB
    executor.cancel(handle)
    assert classify(poll_until_done(executor, 5)).outcome is Outcome.INTERRUPTED


@pytest.mark.parametrize(("card_gives", "held", "lowered"), [(23.56, 10, 0), (22.0, 10, 0), (23.56, 120, 3)])
def test_a_desktop_lowers_the_limit_of_a_named_card_where_too_little_is_left(
    card: FakeNvml, open_executor: Open, folder: TrialDir, card_gives: float, held: int, lowered: int
) -> None:
    device = list_cards()[0]
    executor = open_executor(device, t_bytes=140 * GIB)
    card.used, card.graphics = IDLE + held * GIB, [Entry(99, held * GIB)]
    limit = int(0.97 * card_gives * GIB)
    executor.submit(on_card(budget_bytes=24 * GIB, limit_bytes=limit), folder)
    less = limit - poll_until_done(executor).request.limit_bytes
    assert less == (0 if not lowered else pytest.approx(0.97 * (card_gives - 20) * GIB, abs=2))


def test_a_desktop_lowers_the_limit(card: FakeNvml, open_executor: Open, folder: TrialDir) -> None:
    device = list_cards()[0]
    total = device.total_bytes
    executor = open_executor(device, t_bytes=total)
    card.used, card.graphics = IDLE + 10 * GIB, [Entry(99, 10 * GIB)]
    full = int(0.97 * total)
    executor.submit(on_card(budget_bytes=total, limit_bytes=full, cap_bytes=full - GIB), folder)
    asked = poll_until_done(executor).request
    assert asked.limit_bytes == pytest.approx(0.97 * (total - 10 * GIB), abs=2)
    assert asked.cap_bytes == asked.limit_bytes - GIB
