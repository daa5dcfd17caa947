"""Which model `--model` means, and what of it can be known without importing torch."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import Field

from tuner.errors import WrongInput, nearest
from tuner.shapes import SHAPES
from tuner.workload import Frozen, ModelKind

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_DEFINED = re.compile(r"^(?:async\s+)?(?:def|class)\s+(\w+)", re.MULTILINE)


class ModelSource(Frozen):
    """Where a model comes from."""

    model: str
    kind: ModelKind
    config: dict[str, Any] | None = None
    sources: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of each file's text."""


def find_model(given: str) -> ModelSource:
    """Return the source that a value of ``--model`` names.

    Raises:
        WrongInput: it names none.
    """
    if given in SHAPES:
        return ModelSource(model=given, kind=ModelKind.SHAPE, config=SHAPES[given])
    if ":" in given:
        spec, sources = find_function("model", given)
        return ModelSource(model=spec, kind=ModelKind.FUNCTION, sources=sources)
    path = Path(given).expanduser()
    if path.exists() or given.startswith((".", "/", "~")):
        return _folder(path)
    if _HUB_ID.fullmatch(given):
        return ModelSource(model=given, kind=ModelKind.HUB)
    raise WrongInput(
        "model",
        f"must be a built-in shape ({', '.join(SHAPES)}), a folder with a config.json, a hub id, or module:function",
        given,
        nearest(given, SHAPES),
    )


def _folder(path: Path) -> ModelSource:
    config = path / "config.json"
    if not path.is_dir():
        raise WrongInput("model", "must be a folder that exists", str(path))
    try:
        text = config.read_text()
        values = json.loads(text)
    except OSError as error:
        raise WrongInput("model", f"{config} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise WrongInput("model", f"{config} is not JSON ({error})") from error
    if not isinstance(values, dict) or "model_type" not in values:
        raise WrongInput("model", f"{config} must be a Hugging Face config with a model_type")
    return ModelSource(
        model=str(path.resolve()), kind=ModelKind.FOLDER, config=values, sources={"config.json": _digest(text)}
    )


def find_function(field: str, given: str) -> tuple[str, dict[str, str]]:
    """Return ``module:function`` or ``/path/file.py:function``, and the digest of its file.

    The file is found without importing it: a user's module may import torch, or raise.

    Raises:
        WrongInput: there is no such file, or it does not define the function.
    """
    source, _, name = given.rpartition(":")
    is_file = source.endswith(".py")
    if not name.isidentifier() or not (is_file or all(part.isidentifier() for part in source.split("."))):
        raise WrongInput(field, "must have the form package.module:function or file.py:function", given)
    if is_file:
        path = Path(source).expanduser().resolve()
        spec = f"{path}:{name}"
    else:
        found = next((p for p in _module_paths(source) if p.is_file()), None)
        if found is None:
            raise WrongInput(field, "must be a module that can be found from here", source)
        path, spec = found, given
    try:
        text = path.read_text()
    except OSError as error:
        raise WrongInput(field, f"{path} cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise WrongInput(field, f"{path} is a text file") from error
    if not re.search(rf"^\s*(async\s+)?(def|class)\s+{name}\b|^{name}\s*=|import.*\b{name}\b", text, re.MULTILINE):
        raise WrongInput(field, f"{path} must define it", name, nearest(name, _DEFINED.findall(text)))
    return spec, {f"{field}: {path.name}": _digest(text)}


def _module_paths(module: str) -> Iterable[Path]:
    parts = module.split(".")
    for root in [Path.cwd(), *map(Path, sys.path)]:
        yield root.joinpath(*parts).with_suffix(".py")
        yield root.joinpath(*parts, "__init__.py")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
