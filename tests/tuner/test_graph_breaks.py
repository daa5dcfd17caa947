"""Graph breaks as a person reads them."""

from __future__ import annotations

import pytest

from tuner.graph_breaks import break_words, library_of
from tuner.measured import GraphBreak


@pytest.mark.parametrize(
    ("path", "library"),
    [
        ("/venv/lib/python3.11/site-packages/transformers/models/llama/modeling_llama.py", "transformers"),
        ("/usr/lib/python3/dist-packages/numpy/core/fromnumeric.py", "numpy"),
        ("/venv/lib/python3.11/site-packages/einops.py", "einops"),
        ("/opt/site-packages/thing-1.0-py3.11.egg/thing/layers.py", "thing"),
        ("/usr/lib/python3.11/contextlib.py", "python"),
        ("<frozen importlib._bootstrap>", "python"),
        ("/home/me/lib/python3.11-experiments/train.py", ""),
        ("/home/me/train.py", ""),
        ("?", ""),
    ],
)
def test_the_library_of_a_site(path: str, library: str) -> None:
    assert library_of(f"{path}:12" if path != "?" else path) == library


LIBRARY = "/venv/lib/python3.11/site-packages"


def broke(site: str, count: int, reason: str = "Data-dependent branching.", library: str = "") -> GraphBreak:
    return GraphBreak(site=site, reason=reason, count=count, library=library)


def test_the_breaks_of_many_layers_are_one_site() -> None:
    (words,) = break_words([broke(f"{LIBRARY}/bitsandbytes/nn/modules.py:481", 224, library="bitsandbytes")])
    assert words == "bitsandbytes: 1 site x 224: Data-dependent branching (modules.py:481)"


def test_a_library_with_most_breaks_comes_first_with_its_most_frequent_site() -> None:
    found = break_words(
        [
            broke("/home/me/train.py:12", 3, "print"),
            broke(f"{LIBRARY}/transformers/a.py:1", 1, "once"),
            broke(f"{LIBRARY}/transformers/b.py:2", 7, "often"),
        ]
    )
    assert found == ("transformers: 2 sites x 8: often (b.py:2)", "your code: 1 site x 3: print (train.py:12)")


def test_no_more_than_three_libraries_are_told_apart() -> None:
    found = break_words([broke(f"{LIBRARY}/lib{n}/a.py:1", 10 - n) for n in range(5)])
    assert len(found) == 4 and found[-1] == "and 13 more elsewhere"
    assert break_words([]) == ()
