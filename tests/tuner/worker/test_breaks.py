"""What dynamo says, read from its log."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.tuner.worker.test_health import health
from tuner.worker.health import CompileHealth

__all__ = ["health"]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A library in a site-packages of its own, whose function breaks the graph."""
    package = tmp_path / "lib" / "site-packages" / "a_library_with_a_break"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import torch\ndef call(x):\n    y = x * 2\n    torch._dynamo.graph_break()\n    return y + 1\n"
    )
    monkeypatch.syspath_prepend(str(package.parent))
    yield package.name
    sys.modules.pop(package.name, None)


def test_a_break_in_a_library_names_it(health: CompileHealth, installed: str) -> None:
    library = importlib.import_module(installed)

    def users(x: torch.Tensor) -> torch.Tensor:
        y = x * 3
        torch._dynamo.graph_break()
        return y + 1

    torch.compile(library.call, backend="eager")(torch.ones(3))
    torch.compile(users, backend="eager")(torch.ones(3))
    found = {b.library: b.site for b in health.report(0.0).graph_breaks}
    assert set(found) == {installed, ""}
    assert found[installed] == f"{library.__file__}:4" and found[""].startswith(__file__)
