"""The allocator's snapshot: when it is kept, and its largest blocks in words."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tuner.worker.workloads import measurement, shaped
from tuner.units import GIB, MIB
from tuner.worker import measure
from tuner.worker.measure import Trial
from tuner.worker.snapshot import OUT_OF_MEMORY_FILE, STEP_FILE, History, largest_blocks

CARD, CPU = torch.device("cuda", 0), torch.device("cpu")
TORCH = str(Path(torch.__file__).parent)
CACHE = "/study/compile-cache"


def frame(filename: str, line: int = 1, name: str = "forward") -> dict[str, Any]:
    return {"filename": filename, "line": line, "name": name}


LINEAR = frame(f"{TORCH}/nn/modules/linear.py", 134)
LLAMA = frame("/venv/lib/python3.12/site-packages/transformers/models/llama/modeling_llama.py", 253)
MINE = frame("/home/me/my_models.py", 12, "attend")
GENERATED = frame(f"{CACHE}/ab/cabcd.py", 300, "call")


def block(size: int, *frames: dict[str, Any], state: str = "active_allocated") -> dict[str, Any]:
    return {"size": size, "state": state, "frames": list(frames)}


def snapshot(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"segments": [{"blocks": list(blocks[::2])}, {"blocks": list(blocks[1::2])}], "device_traces": []}


def test_the_largest_come_first_by_the_first_line_outside_torch() -> None:
    found = largest_blocks(
        snapshot(
            block(48 * MIB, LINEAR, LLAMA, MINE),
            block(GIB, LINEAR, LLAMA),
            block(3 * GIB // 2, LINEAR, MINE),
            block(9 * GIB, LINEAR, MINE, state="inactive"),
            block(512 * 1024, frame("<frozen>"), frame("??"), frame("<eval_with_key>.3"), MINE),
        )
    )
    assert found == (
        "1.50 GiB in 2 blocks, the largest 1.50 GiB: /home/me/my_models.py:12 attend",
        "1.05 GiB in 2 blocks, the largest 1.00 GiB: transformers/models/llama/modeling_llama.py:253 forward",
    )


def test_compiled_code_and_blocks_without_a_line() -> None:
    found = largest_blocks(
        snapshot(
            block(3 * GIB, GENERATED, LINEAR, LLAMA),
            block(2 * GIB, GENERATED, LINEAR),
            block(GIB),
            block(MIB, frame("/tmp/torchinductor_me/xy/cxyz.py", 5, "call"), MINE),
        ),
        generated=CACHE,
    )
    assert [line.partition(": ")[2] for line in found] == [
        "compiled code, called from transformers/models/llama/modeling_llama.py:253 forward",
        "compiled code, in its backward",
        "where no Python line was on the stack (autograd's backward), or before it was recorded",
        "compiled code, called from /home/me/my_models.py:12 attend",
    ]


def test_ten_at_most_and_an_empty_one() -> None:
    many = [block(n * MIB, frame(f"/f{n}.py")) for n in range(1, 30)]
    found = largest_blocks(snapshot(*many))
    assert len(found) == 10 and found[0] == "29.0 MiB: /f29.py:1 forward"
    assert largest_blocks({}) == ()


class FakeAllocator:
    """Notes what is recorded, and calls its observer where memory runs out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.recorded: list[str | None] = []
        self.observer: Callable[..., None] = lambda *_: None
        self.now = snapshot(block(GIB, MINE))
        monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", self.attach, raising=False)
        monkeypatch.setattr(torch.cuda, "init", lambda: None)
        monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", self.record)
        monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: self.now)

    def attach(self, observer: Callable[..., None]) -> None:
        self.observer = observer

    def record(self, enabled: str | None, **_: Any) -> None:
        self.recorded.append(enabled)


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> FakeAllocator:
    return FakeAllocator(monkeypatch)


def test_an_out_of_memory_keeps_the_state_of_its_moment(allocator: FakeAllocator, tmp_path: Path) -> None:
    history = History(CARD, tmp_path, CACHE)
    history.start()
    assert allocator.recorded == ["state"]
    allocator.observer(0, 5, 7, 9)
    allocator.now = snapshot()  # what the error's way up has freed
    assert history.result(True) == (OUT_OF_MEMORY_FILE, ("1.00 GiB: /home/me/my_models.py:12 attend",))
    kept = pickle.loads((tmp_path / OUT_OF_MEMORY_FILE).read_bytes())
    assert kept["segments"][0]["blocks"][0]["size"] == GIB, "torch's own format, for pytorch.org/memory_viz"


def test_one_that_was_caught_leaves_nothing(allocator: FakeAllocator, tmp_path: Path) -> None:
    history = History(CARD, tmp_path, CACHE)
    history.start()
    allocator.observer(0, 5, 7, 9)
    assert history.result(False) == (None, ()) and list(tmp_path.iterdir()) == []


def test_a_step_that_was_asked_for(allocator: FakeAllocator, tmp_path: Path) -> None:
    history = History(CARD, tmp_path, CACHE)
    history.start()
    history.follow()
    history.keep_step()
    history.stop()
    assert allocator.recorded == ["state", "all", None]
    assert history.result(False) == (STEP_FILE, ("1.00 GiB: /home/me/my_models.py:12 attend",))
    assert (tmp_path / STEP_FILE).exists() and history.seconds > 0


def test_what_cannot_be_had_ends_no_trial(
    allocator: FakeAllocator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("expected state to be something else")

    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", refuse)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", refuse)
    history = History(CARD, tmp_path, CACHE)
    history.start()
    allocator.observer(0, 5, 7, 9)
    assert history.problem == "RuntimeError: expected state to be something else"
    assert history.result(True) == (None, ())


def test_a_cpu_has_none(allocator: FakeAllocator, tmp_path: Path) -> None:
    history = History(CPU, tmp_path, CACHE)
    history.start()
    history.follow()
    history.keep_step()
    history.stop()
    assert allocator.recorded == [] and history.result(True) == (None, ()) and list(tmp_path.iterdir()) == []


def test_nothing_is_recorded_in_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("start", "stop", "follow", "keep_step"):
        monkeypatch.setattr(History, name, lambda _, name=name: calls.append(name))
    steady = Trial.steady
    monkeypatch.setattr(Trial, "steady", lambda self: (calls.append("steady"), steady(self))[1])
    made = measurement(shaped())
    made.request = made.request.model_copy(update={"memory_snapshot": True})
    Trial(made).run()
    assert calls == ["start", "follow", "keep_step", "stop", "steady"]


@pytest.mark.parametrize(("asked", "calls"), [(False, ["start", "stop"]), (True, ["start"])])
def test_graphs_are_recorded_without_it(monkeypatch: pytest.MonkeyPatch, asked: bool, calls: list[str]) -> None:
    called: list[str] = []
    for name in ("start", "stop"):
        monkeypatch.setattr(History, name, lambda _, name=name: called.append(name))
    apply = measure.apply

    def on_a_card(*args: Any) -> Any:
        applied = apply(*args)
        applied.records_graphs = True
        return applied

    monkeypatch.setattr(measure, "apply", on_a_card)
    made = measurement(shaped())
    made.request = made.request.model_copy(update={"memory_snapshot": asked})
    Trial(made).load()
    assert called == calls
