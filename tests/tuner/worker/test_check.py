"""How the check's child names a cause, from exceptions in the shapes that torch really raises."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tuner.worker.check import Child
from tuner.worker.check_cause import cause, chain, describe, machine_fault


class InductorError(RuntimeError):
    """Has the cause in an attribute, as torch's has."""

    def __init__(self, inner: Exception) -> None:
        super().__init__(f"{type(inner).__name__}: {inner}\n\nSet TORCHDYNAMO_VERBOSE=1")
        self.inner_exception = inner


class InvalidCxxCompiler(RuntimeError):
    """No compiler."""


class CppCompileError(RuntimeError):
    """A compiler that failed."""


def test_a_wrapped_missing_compiler() -> None:
    error = InductorError(InvalidCxxCompiler("No working C++ compiler found in (None, '/bin/false')"))
    assert cause(error).startswith("the C++ compiler does not work: InvalidCxxCompiler: No working")


def test_missing_headers_show_the_compilers_line() -> None:
    output = "C++ compile error\n\nCommand:\ng++ x.cpp\n\nOutput:\nx.cpp:1: fatal error: Python.h: No such file"
    assert "Python.h: No such file" in cause(InductorError(CppCompileError(output)))


@pytest.mark.parametrize("kind", [PermissionError, FileExistsError, NotADirectoryError])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_cache_folder_in_both_shapes(kind: type[OSError], wrapped: bool) -> None:
    inner = kind(13, "no", "/cache")
    assert cause(InductorError(inner) if wrapped else inner) == "the cache folder cannot be written: /cache: no"


def test_the_cause_may_be_behind_raise_from() -> None:
    try:
        try:
            raise FileExistsError(17, "File exists", "/cache")
        except FileExistsError as inner:
            raise ImportError("cannot import name") from inner
    except ImportError as error:
        assert "/cache" in cause(error)


def test_an_unknown_cause_is_the_innermost_one() -> None:
    assert cause(InductorError(ValueError("something\nelse"))) == "ValueError: something"


def test_a_chain_that_bites_its_tail_ends() -> None:
    error = InductorError(ValueError("x"))
    error.inner_exception.__cause__ = error
    assert len(list(chain(error))) == 2


def test_an_exception_without_text_has_its_type() -> None:
    assert describe(KeyError()) == "KeyError"


def test_a_torch_that_cannot_be_imported_ends_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise OSError(f"libcudart.so.13: cannot open shared object file ({name})")

    monkeypatch.setattr("importlib.import_module", refuse)
    out = tmp_path / "out.json"
    Child(out, "cpu").run()
    report = json.loads(out.read_text())
    assert report["stage"] == "torch"
    assert [(i["name"], i["ok"]) for i in report["items"]] == [("torch", False)]
    assert "libcudart.so.13" in report["items"][0]["value"]
    assert not list(tmp_path.glob("*.part"))


OUTPUT = "C++ compile error\n\nCommand:\ng++ x.cpp\n\nOutput:\n"


def inductors(inner: Exception) -> Exception:
    """As torch's own: by its module the failure is known to be of compiling."""
    error = InductorError(inner)
    type(error).__module__ = "torch._inductor.exc"
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (InvalidCxxCompiler("No working C++ compiler found"), "the C++ compiler does not work: InvalidCxxCompiler"),
        (CppCompileError(OUTPUT + "x.cpp:1: fatal error: Python.h: No such file or directory"), "Python.h"),
        (CppCompileError(OUTPUT + "x.s: Fatal error: can't write: No space left on device"), "can be written any more"),
        (OSError(28, "No space left on device", "/cache/x.so"), "nothing can be written any more: /cache/x.so"),
        (PermissionError(13, "Permission denied", "/cache/a"), "the cache folder cannot be used: /cache/a: Permission"),
        (FileNotFoundError(2, "No such file or directory", "/cache/b"), "the cache folder cannot be used: /cache/b"),
    ],
)
def test_what_a_machine_lost_while_it_compiled(error: Exception, said: str) -> None:
    assert said in (machine_fault(inductors(error)) or "nothing")


def test_a_bare_error_counts_where_it_is_of_the_trials_own_cache() -> None:
    error = FileExistsError(17, "File exists", "/studies/s/compile-cache/inductor")
    assert machine_fault(error, "/studies/s/compile-cache") is not None
    assert machine_fault(error) is None and machine_fault(error, "/elsewhere") is None, "a file of the user's own"
    assert machine_fault(OSError(28, "No space left on device")) is not None, "whoever wanted to write"


@pytest.mark.parametrize(
    "error",
    [
        AssertionError("lowering"),
        CppCompileError(OUTPUT + "x.cpp:7:3: error: 'tmp0' was not declared in this scope"),
        ValueError("No such file"),
    ],
)
def test_what_a_strategy_did_itself_is_not_the_machines(error: Exception) -> None:
    assert machine_fault(inductors(error)) is None


def test_a_file_that_the_users_function_misses_is_the_users_though_dynamo_had_a_word_before() -> None:
    class Unsupported(RuntimeError):
        __module__ = "torch._dynamo.exc"

    error = FileNotFoundError(2, "No such file or directory", "/home/me/data.bin")
    error.__context__ = Unsupported("open")
    assert machine_fault(error, "/studies/s/compile-cache") is None
