"""The border to the user's own model, loss and batch functions."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from tuner.errors import TunerError


class UserCodeError(TunerError):
    """The user's own model, loss or batch function cannot be used; the message says why."""


@contextlib.contextmanager
def users_code(spec: str) -> Iterator[None]:
    """Name the user's function in whatever it raises; running out of memory is told apart."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except UserCodeError:
        raise
    except (Exception, SystemExit) as error:  # the border to code that is not ours: anything may come
        said = next((line.strip() for line in str(error).splitlines() if line.strip()), "nothing said")
        raise UserCodeError(f"{spec} raised {type(error).__name__}: {said}") from error


def load_function(spec: str) -> Callable[..., Any]:
    """Return the function that ``package.module:function`` or ``file.py:function`` names.

    Raises:
        UserCodeError: the module cannot be imported, or has no such function.
    """
    source, _, name = spec.rpartition(":")
    with users_code(spec):
        module = _load_file(Path(source)) if source.endswith(".py") else importlib.import_module(source)
        function = getattr(module, name)
    if not callable(function):
        raise UserCodeError(f"{spec} is not a function")
    return function  # type: ignore[no-any-return]


@functools.cache
def _load_file(path: Path) -> ModuleType:
    """Run a file once, however many functions are taken from it, with its own folder behind `sys.path`."""
    # A name that no library has: a user's `random.py` must not stand for Python's.
    found = importlib.util.spec_from_file_location(f"_user_{path.stem}_{len(sys.modules)}", path)
    if found is None or found.loader is None:
        raise UserCodeError(f"{path} cannot be loaded as a Python file")
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    found.loader.exec_module(module)
    return module
