"""What ``--model`` names, and what is known of it without torch."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tuner.errors import WrongInput
from tuner.model_source import find_function, find_model
from tuner.shapes import SHAPES
from tuner.workload import ModelKind


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def module(path: Path, text: str = "def net():\n    ...\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", list(SHAPES))
def test_a_built_in_shape(name: str) -> None:
    found = find_model(name)
    assert (found.model, found.kind, found.config, found.sources) == (name, ModelKind.SHAPE, SHAPES[name], {})


def test_a_folder(here: Path) -> None:
    text = json.dumps({"model_type": "llama", "num_hidden_layers": 3})
    (here / "my-llama").mkdir()
    (here / "my-llama" / "config.json").write_text(text)
    for given in ("./my-llama", "my-llama", str(here / "my-llama")):
        found = find_model(given)
        assert found.kind is ModelKind.FOLDER and found.model == str(here / "my-llama")
        assert found.config == {"model_type": "llama", "num_hidden_layers": 3}
        assert found.sources == {"config.json": hashlib.sha256(text.encode()).hexdigest()}


def test_a_hub_id() -> None:
    found = find_model("meta-llama/Llama-2-7b-hf")
    assert (found.kind, found.model, found.config) == (ModelKind.HUB, "meta-llama/Llama-2-7b-hf", None)


def test_a_function_of_a_file_by_its_absolute_path(here: Path) -> None:
    path = module(here / "deep" / "mine.py")
    found = find_model("deep/mine.py:net")
    assert (found.kind, found.model) == (ModelKind.FUNCTION, f"{path}:net")
    assert found.sources == {"model: mine.py": hashlib.sha256(path.read_bytes()).hexdigest()}


def test_a_function_of_a_module_from_here_or_the_path(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module(here / "pack" / "inner.py")
    module(here / "whole" / "__init__.py")
    elsewhere = module(here / "elsewhere" / "far.py")
    monkeypatch.syspath_prepend(str(elsewhere.parent))
    for given in ("pack.inner:net", "whole:net", "far:net"):
        assert find_function("loss", given)[0] == given


@pytest.mark.parametrize(
    "line", ["net = make()", "from other import net", "class net:", "  async def net(): ...", "net=1"]
)
def test_ways_to_define_it(here: Path, line: str) -> None:
    module(here / "mine.py", f"import os\n{line}\n")
    assert find_function("model", "mine.py:net")


def test_it_is_not_imported(here: Path) -> None:
    module(here / "mine.py", "raise SystemExit('imported')\ndef net(): ...\n")
    assert find_function("model", "mine.py:net") and find_function("model", "mine:net")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("lama-1b", "model: must be a built-in shape (llama-7b, .*not 'lama-1b' (did you mean 'llama-1b'?)"),
        ("./missing", "model: must be a folder that exists, not 'missing'"),
        ("/nowhere/at/all", "model: must be a folder that exists, not '/nowhere/at/all'"),
        ("empty", "model: empty/config.json cannot be read (No such file or directory)"),
        ("broken", "model: broken/config.json is not JSON"),
        ("binary", "model: binary/config.json is not JSON"),
        ("other", "model: other/config.json must be a Hugging Face config with a model_type"),
        ("list", "model: list/config.json must be a Hugging Face config with a model_type"),
        ("mine.py:", "model: must have the form package.module:function or file.py:function, not 'mine.py:'"),
        ("mine.py:a b", "model: must have the form"),
        (":net", "model: must have the form"),
        (".:net", "model: must have the form"),
        ("no such:net", "model: must have the form"),
        ("none.py:net", "model: .*/none.py cannot be read (No such file or directory)"),
        ("binary.py:net", "model: .*/binary.py is a text file"),
        ("mine.py:nett", "model: .*/mine.py must define it, not 'nett' (did you mean 'net'?)"),
        ("nowhere.module:net", "model: must be a module that can be found from here, not 'nowhere.module'"),
    ],
)
def test_what_names_no_model(here: Path, given: str, says: str) -> None:
    module(here / "mine.py")
    (here / "binary.py").write_bytes(b"\xff\xfe\x00")
    for name, content in {
        "broken": b"{",
        "binary": b"\xff\xfe",
        "other": b'{"a": 1}',
        "list": b'["model_type"]',
    }.items():
        (here / name).mkdir()
        (here / name / "config.json").write_bytes(content)
    (here / "empty").mkdir()
    with pytest.raises(WrongInput, match=says.replace("(", r"\(").replace(")", r"\)").replace("?", r"\?")) as caught:
        find_model(given)
    assert "\n" not in str(caught.value)
