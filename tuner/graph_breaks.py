"""Graph breaks as a person reads them: by library, with their sites counted."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tuner.measured import GraphBreak

SHOWN = 3
"""Libraries, the one with the most breaks first."""
YOURS = "your code"
_INSTALLED = re.compile(r"/(?:site|dist)-packages/(?:[^/]+\.egg/)?([^/:]+)")
_STANDARD = re.compile(r"/lib/python\d+\.\d+/(?!(?:site|dist)-packages/)")
_REASON_LENGTH = 120


def library_of(site: str) -> str:
    """Return the top-level package of a ``file:line``: ``transformers``; empty for a file of the user's own."""
    path = site.rpartition(":")[0].replace("\\", "/")
    if found := _INSTALLED.search(path):
        return found[1].removesuffix(".py")
    if _STANDARD.search(path) or path.startswith("<frozen"):
        return "python"
    return ""


def break_words(breaks: Iterable[GraphBreak]) -> tuple[str, ...]:
    """Return ``transformers: 1 site x 224: reason (modeling_llama.py:120)``, one for each library.

    Reason and site are those of the most frequent break; a site is one line of code.
    """
    groups: dict[str, list[GraphBreak]] = {}
    for found in breaks:
        groups.setdefault(found.library or library_of(found.site), []).append(found)
    ordered = sorted(groups.items(), key=lambda group: -_count(group[1]))
    words = [_words(library, sorted(found, key=lambda b: -b.count)) for library, found in ordered[:SHOWN]]
    rest = ordered[SHOWN:]
    return (*words, *([f"and {sum(_count(found) for _, found in rest)} more elsewhere"] if rest else []))


def _words(library: str, breaks: list[GraphBreak]) -> str:
    sites = len({found.site for found in breaks})
    often = breaks[0]
    where = often.site.replace("\\", "/").rpartition("/")[2]
    reason = often.reason.strip().rstrip(".")[:_REASON_LENGTH]
    return f"{library or YOURS}: {sites} site{'s' if sites > 1 else ''} x {_count(breaks)}: {reason} ({where})"


def _count(breaks: Iterable[GraphBreak]) -> int:
    return sum(found.count for found in breaks)
