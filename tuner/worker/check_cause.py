"""Why nothing could be compiled, in one phrase: the same cause arrives as exceptions of several shapes."""

from __future__ import annotations

from collections.abc import Iterator

_SHOWN = 300
"""Characters of a message."""


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


def describe(error: BaseException) -> str:
    """The exception's type and the first line of what it says."""
    text = str(error).strip()
    first = text.splitlines()[0] if text else ""
    missing = next((line.strip() for line in text.splitlines() if "fatal error" in line), "")
    return f"{type(error).__name__}: {missing or first}"[:_SHOWN].removesuffix(": ")
