"""Why nothing could be compiled, in one phrase: the same cause arrives as exceptions of several shapes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tuner.errors import FULL, full_disk

_SHOWN = 300
"""Characters of a message."""
_COMPILERS = ("torch._inductor", "triton")
_LOST = re.compile(r"fatal error: .*No such file|cannot open output file|cannot execute|command not found")
"""What a C++ compiler says that has lost a header, its folder or a part of itself; never of the code it was given."""


def chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and those that caused it; torch keeps one more behind `inner_exception`."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        link = todo.pop(0)
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        todo += [getattr(link, "inner_exception", None), link.__cause__, link.__context__]


def cause(error: BaseException) -> str:
    """One phrase for why nothing can be compiled, from exceptions that come in several shapes."""
    links = list(chain(error))
    for link in links:
        if type(link).__name__ in {"InvalidCxxCompiler", "CppCompileError"}:
            return f"the C++ compiler does not work: {describe(link)}"
        if isinstance(link, PermissionError | FileExistsError | NotADirectoryError) and link.filename:
            return f"the cache folder cannot be written: {link.filename}: {link.strerror}"
        if type(link).__name__ in {"TritonMissing", "GPUTooOldForTriton"}:
            return f"Triton cannot be used: {describe(link)}"
    return next((describe(link) for link in links if getattr(link, "inner_exception", None) is None), describe(error))


def machine_fault(error: BaseException, cache_dir: str | None = None) -> str | None:
    """Return one phrase for what the machine lost while a trial ran; None: it may be the strategy's own doing.

    Before a study the same causes are found by the check; these are the ones that come later: a
    disk that fills, a cache folder that vanishes, a compiler that is taken away.

    Args:
        cache_dir: the trial's compile cache: what fails in there is no code of the user's.
    """
    links = list(chain(error))
    # What dynamo raises may also stand before an error of the user's own function; what wraps another may not.
    compiling = any(type(link).__module__.startswith(_COMPILERS) or hasattr(link, "inner_exception") for link in links)
    full = next((link for link in links if isinstance(link, OSError) and link.errno in FULL), None)
    if full is not None:
        return f"nothing can be written any more: {full.filename or 'a file'}: {full.strerror}"
    for link in links:
        if compiling and (said := full_disk(str(link))):
            return f"nothing can be written any more: {said}"
        if type(link).__name__ == "InvalidCxxCompiler" or _is_lost_compiler(link):
            return f"the C++ compiler does not work: {describe(link)}"
        if type(link).__name__ in {"TritonMissing", "GPUTooOldForTriton"}:
            return f"Triton cannot be used: {describe(link)}"
        if _is_of_files(link) and (compiling or _lies_in(link, cache_dir)):
            return f"the cache folder cannot be used: {_named(link)}"
    return None


def _is_lost_compiler(error: BaseException) -> bool:
    return type(error).__name__ == "CppCompileError" and _LOST.search(str(error)) is not None


def _is_of_files(error: BaseException) -> bool:
    kinds = PermissionError | FileExistsError | FileNotFoundError | NotADirectoryError | IsADirectoryError
    return isinstance(error, kinds) and error.filename is not None


def _lies_in(error: BaseException, folder: str | None) -> bool:
    return isinstance(error, OSError) and folder is not None and Path(str(error.filename)).is_relative_to(folder)


def _named(error: BaseException) -> str:
    return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else describe(error)


def describe(error: BaseException) -> str:
    """The exception's type and the first line of what it says."""
    text = str(error).strip()
    first = text.splitlines()[0] if text else ""
    missing = next((line.strip() for line in text.splitlines() if "fatal error" in line), "")
    return f"{type(error).__name__}: {missing or first}"[:_SHOWN].removesuffix(": ")
