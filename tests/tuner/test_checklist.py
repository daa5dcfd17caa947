"""What the parent sees of the machine by itself."""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections import namedtuple
from pathlib import Path

import pytest

from tuner import checklist
from tuner.checklist import cache_item, compiler, compiler_item, disk_item, headers_item, parent_items, versions
from tuner.units import GIB

PATH = {"PATH": os.environ["PATH"]}
Usage = namedtuple("Usage", "total used free")


def test_the_compiler_is_the_one_inductor_takes(tmp_path: Path) -> None:
    assert compiler(PATH) == shutil.which("g++")
    assert compiler(PATH | {"CXX": "clang++-99"}) is None
    assert compiler(PATH | {"CXX": "g++ -m64"}) == shutil.which("g++")
    assert compiler({"PATH": str(tmp_path)}) is None


def test_no_compiler_says_what_to_install(tmp_path: Path) -> None:
    item = compiler_item({"PATH": str(tmp_path)})
    assert not item.ok and item.value == "no C++ compiler found" and "apt-get install g++" in item.advice


def test_a_compiler_that_fails_names_the_variable() -> None:
    item = compiler_item(PATH | {"CXX": "/bin/false"})
    assert not item.ok and "CXX=/bin/false" in item.value and "unset CXX" in item.advice


def test_missing_headers_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert headers_item().ok
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    item = headers_item()
    assert not item.ok and f"{tmp_path}/Python.h" in item.value and "python3-dev" in item.advice


def test_the_cache_folder_is_made(tmp_path: Path) -> None:
    assert cache_item(tmp_path / "a" / "b").ok
    assert (tmp_path / "a" / "b").is_dir() and not any((tmp_path / "a" / "b").iterdir())


def test_a_cache_folder_under_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    item = cache_item(tmp_path / "file" / "cache")
    assert not item.ok and "Not a directory" in item.value and "--storage" in item.advice


def test_a_full_disk_is_said_before_it_is_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert disk_item(tmp_path / "not" / "yet").ok == (shutil.disk_usage(tmp_path).free >= checklist.LEAST_FREE_BYTES)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10 * GIB, 9 * GIB, GIB))
    item = disk_item(tmp_path / "not" / "yet")
    assert not item.ok and "1.00 GiB free" in item.value and "tuner clean" in item.advice


def test_the_driver_is_asked_for_with_a_card_alone(tmp_path: Path) -> None:
    assert "driver" not in {i.name for i in parent_items("cpu", tmp_path, PATH, None)}
    missing = next(i for i in parent_items("cuda:0", tmp_path, PATH, None) if i.name == "driver")
    assert not missing.ok and "driver" in missing.advice
    assert next(i for i in parent_items("cuda:0", tmp_path, PATH, "570.1") if i.name == "driver").value == "570.1"


def test_versions_are_those_of_the_distributions() -> None:
    assert set(versions()) == {"torch", "transformers", "peft", "bitsandbytes"}
