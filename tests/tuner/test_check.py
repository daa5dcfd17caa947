"""The check of the machine, with the real child: what cannot compile is named, what can is kept."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from tuner import check
from tuner.check import ask_child, conclude, environment_fingerprint, run_check
from tuner.errors import Interrupted
from tuner.machine import CheckItem, CheckResult, ChildReport

ROOT = Path(__file__).parents[2]


@pytest.fixture
def environment() -> dict[str, str]:
    return dict(os.environ) | {"PYTHONPATH": str(ROOT)}


def item(result: CheckResult, name: str) -> CheckItem:
    return next(i for i in result.items if i.name == name)


def test_a_healthy_machine_compiles_and_is_not_asked_again(tmp_path: Path, environment: dict[str, str]) -> None:
    keep = tmp_path / "studies" / "check.json"
    first = run_check("cpu", tmp_path / "cache", environment, keep)
    assert first.can_compile and first.can_run, first.reason
    assert first.reason == "" and not first.kept
    assert first.facts.bitsandbytes_usable
    assert first.facts.versions["torch"].startswith("2.")
    assert first.facts.cuda_total_bytes is None
    assert {"python", "headers", "compiler", "cache", "disk", "torch", "device", "compile"} <= {
        i.name for i in first.items
    }

    # A child that would fail shows that the second check starts none.
    broken = environment | {"PYTHONPATH": "/nowhere"}
    second = run_check("cpu", tmp_path / "cache", broken, keep)
    assert second.kept and second.can_compile
    assert second.facts == first.facts


def test_a_compiler_that_does_not_work_is_named(tmp_path: Path, environment: dict[str, str]) -> None:
    keep = tmp_path / "check.json"
    result = run_check("cpu", tmp_path / "cache", environment | {"CXX": "/bin/false"}, keep)
    assert not result.can_compile
    assert result.can_run, "eager strategies need no compiler"
    assert "C++ compiler" in result.reason and "/bin/false" in result.reason and "g++" in result.reason
    assert not item(result, "compiler").ok
    assert not keep.exists(), "a fault is asked about again"


def test_a_cache_folder_that_is_a_file_is_named(tmp_path: Path, environment: dict[str, str]) -> None:
    blocked = tmp_path / "cache"
    blocked.touch()
    result = run_check("cpu", blocked, environment, None)
    assert not result.can_compile
    assert not result.can_run, "torch's optimizers import dynamo, which makes the folder"
    assert str(blocked) in result.reason and "cannot be written" in result.reason


@pytest.mark.skipif(os.getuid() == 0 and not Path("/sys/kernel").is_dir(), reason="no folder that root cannot write")
def test_a_cache_folder_that_is_not_writable_is_named(tmp_path: Path, environment: dict[str, str]) -> None:
    if os.getuid() == 0:
        # Root ignores mode bits, but not that sysfs makes no folders.
        blocked = Path("/sys/compile-tuner")
    else:
        tmp_path.chmod(0o555)
        blocked = tmp_path / "cache"
    result = run_check("cpu", blocked, environment, None)
    assert not result.can_compile
    assert str(blocked) in result.reason and "cannot be written" in result.reason
    assert not item(result, "cache").ok


def test_a_card_that_is_not_there_is_named(tmp_path: Path, environment: dict[str, str]) -> None:
    hidden = environment | {"CUDA_VISIBLE_DEVICES": ""}
    result = run_check("cuda:0", tmp_path / "cache", hidden, None)
    assert not result.can_run and not result.can_compile
    assert not item(result, "device").ok
    assert "--device cpu" in result.reason


def fake_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Let the child be `body`, with OUT as its report's path."""
    package = tmp_path / "fake" / "tuner" / "worker"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "check.py").write_text(f"import os, sys, time\nOUT = sys.argv[1]\n{body}\n")
    monkeypatch.chdir(tmp_path / "fake")


REPORT = ChildReport(stage="compile", items=(CheckItem(name="device", ok=True, value="cpu"),)).model_dump_json()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("os.kill(os.getpid(), 11)", "SIGSEGV"),
        ("time.sleep(60)", "longer than 2 s"),
        ("print('no room'); os._exit(3)", "exit status 3 no room"),
    ],
)
def test_a_child_that_dies_blames_the_stage_it_was_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, said: str
) -> None:
    fake_child(tmp_path, monkeypatch, f"open(OUT, 'w').write({REPORT!r})\n{body}")
    report = ask_child("cpu", tmp_path / "cache", {"PATH": os.environ["PATH"]}, seconds=2.0)
    fault = report.items[-1]
    assert (fault.name, fault.ok) == ("compile", False)
    assert said in fault.value
    result = conclude("cpu", None, report.items, report, kept=False)
    assert result.can_run and not result.can_compile and said in result.reason


def test_a_child_that_says_nothing_is_a_machine_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_child(tmp_path, monkeypatch, "os._exit(1)")
    with pytest.raises(check.MachineError, match="could not start: ended with exit status 1"):
        ask_child("cpu", tmp_path / "cache", {"PATH": os.environ["PATH"]}, seconds=30.0)


@pytest.mark.parametrize("change", [{"CXX": sys.executable}, {"CUDA_VISIBLE_DEVICES": "1"}, {"PATH": "/nowhere"}])
def test_another_environment_is_asked_anew(tmp_path: Path, change: dict[str, str]) -> None:
    environment = {"PATH": os.environ["PATH"]}
    before = environment_fingerprint("cpu", tmp_path, environment, None)
    assert before == environment_fingerprint("cpu", tmp_path, dict(environment), None)
    assert before != environment_fingerprint("cpu", tmp_path, environment | change, None)
    assert before != environment_fingerprint("cuda:0", tmp_path, environment, None)
    assert before != environment_fingerprint("cpu", tmp_path / "other", environment, None)
    assert before != environment_fingerprint("cpu", tmp_path, environment, "570.1")


def test_a_kept_file_that_is_damaged_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = tmp_path / "check.json"
    keep.write_text('{"schema_version": 1, "finger')
    done = ChildReport(stage="done", items=(CheckItem(name="device", ok=True, value="cpu"),), compile_seconds=1.0)
    asked: list[str] = []
    monkeypatch.setattr(check, "ask_child", lambda device, *_: asked.append(device) or done)
    assert run_check("cpu", tmp_path / "cache", {"PATH": os.environ["PATH"]}, keep).can_compile
    assert run_check("cpu", tmp_path / "cache", {"PATH": os.environ["PATH"]}, keep).kept
    assert not run_check("cpu", tmp_path / "cache", {"PATH": os.environ["PATH"]}, keep, fresh=True).kept
    assert asked == ["cpu", "cpu"]


def test_a_stop_is_heard_while_the_child_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_child(tmp_path, monkeypatch, "open('pid', 'w').write(str(os.getpid()))\ntime.sleep(600)")
    pid = tmp_path / "fake" / "pid"
    begun = time.monotonic()
    with pytest.raises(Interrupted, match="checked"):
        ask_child("cpu", tmp_path / "cache", {"PATH": os.environ["PATH"]}, 60.0, pid.exists)
    assert time.monotonic() - begun < 20
    assert pid.read_text() == "" or not Path("/proc", pid.read_text()).exists(), "the child is ended"
