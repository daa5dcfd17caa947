"""What is found on the disk and removed, and what never is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tuner.trials import result
from tuner import clean
from tuner.clean import describe, find, remove, size_bytes
from tuner.errors import MachineError
from tuner.trial_dir import TrialDir


@pytest.fixture
def studies(tmp_path: Path) -> Path:
    studies = tmp_path / "studies"
    for path, size in [
        ("a/0/request.json", 10),
        ("a/0/worker.log", 20),
        ("a/0/compile-cache/x.so", 30),
        ("a/compile-cache/deep/y.so", 400),
        ("a/search.log", 5),
        ("b/0/request.json", 7),
        ("cache/check/z.so", 50),
        ("bug.log", 3),
        ("records/h200.db", 1000),
        ("tuner.db", 1000),
        ("llama.yaml", 1),
        ("mine/notes.txt", 1),
    ]:
        file = studies / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x" * size)
    return studies


def names(studies: Path, found: list[clean.Leftover]) -> list[tuple[str, str, int]]:
    return [(str(f.path.relative_to(studies)), f.what, f.size_bytes) for f in found]


def test_trials_caches_and_logs_are_found_with_their_bytes(studies: Path) -> None:
    assert names(studies, find(studies, ["a", "gone"], shared=False, recorded=())) == [
        ("a/0", "trial", 60),
        ("a/compile-cache", "cache", 400),
        ("a/search.log", "log", 5),
    ]


def test_memory_snapshots_are_counted_and_go_with_their_trial(studies: Path) -> None:
    (studies / "a" / "0" / "out-of-memory.pickle").write_bytes(b"x" * 1000)
    found = find(studies, ["a"], shared=False, recorded=())
    assert names(studies, found)[0] == ("a/0", "trial", 1060)
    remove(found)
    assert not (studies / "a" / "0").exists()


def test_what_several_studies_use_is_found_when_asked(studies: Path) -> None:
    found = names(studies, find(studies, [], shared=True, recorded=()))
    assert found == [("bug.log", "log", 3), ("cache", "cache", 50)]


def test_records_and_what_is_not_ours_stay(studies: Path) -> None:
    remove(find(studies, ["a", "b", "records"], shared=True, recorded=()))
    left = sorted(str(p.relative_to(studies)) for p in studies.rglob("*") if p.is_file())
    assert left == ["llama.yaml", "mine/notes.txt", "records/h200.db", "tuner.db"]


def test_a_link_is_removed_and_not_what_it_points_at(studies: Path) -> None:
    (studies / "a" / "link").symlink_to(studies / "mine")
    (studies / "linked-study").symlink_to(studies / "mine")
    found = find(studies, ["a", "linked-study"], shared=False, recorded=())
    assert ("a/link", "log") in [(name, what) for name, what, _ in names(studies, found)]
    remove(found)
    assert (studies / "mine" / "notes.txt").exists() and not (studies / "a" / "link").is_symlink()


def test_the_lines_say_bytes_and_that_records_stay(studies: Path) -> None:
    found = find(studies, ["a"], shared=False, recorded=())
    lines = describe(found, {"busy"}, removed=False)
    assert lines[0] == "study busy is being searched: left alone"
    assert "400 bytes  cache" in lines[2]
    assert lines[-1].startswith("465 bytes (0.00 GiB) in 3 files and folders") and "--yes" in lines[-1]
    assert describe(found, (), removed=True)[-1].endswith("removed.")
    assert describe([], (), removed=True) == ["Nothing to remove."]


def test_what_cannot_be_removed_is_a_machine_error(studies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("shutil.rmtree", refuse)
    with pytest.raises(MachineError, match=r"a/0 cannot be removed \(Permission denied\)"):
        remove(find(studies, ["a"], shared=False, recorded=()))


def test_the_size_of_a_file_and_of_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"123")
    (tmp_path / "empty").mkdir()
    assert size_bytes(tmp_path / "file") == 3 and size_bytes(tmp_path / "empty") == 0


def test_a_result_that_is_in_no_record_stays(studies: Path) -> None:
    folder = TrialDir(studies / "a" / "0")
    folder.write_result(result("uuid-1"))
    assert ("a/0", "trial") not in [n[:2] for n in names(studies, find(studies, ["a"], False, recorded=()))]
    assert ("a/0", "trial") in [n[:2] for n in names(studies, find(studies, ["a"], False, recorded={"uuid-1"}))]
    folder.write_result(result("uuid-1", throughput=None))  # it says nothing
    assert ("a/0", "trial") in [n[:2] for n in names(studies, find(studies, ["a"], False, recorded=()))], (
        "it says nothing"
    )
