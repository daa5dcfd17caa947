"""Reading an exported plan: what is right comes back whole, what is wrong is one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tuner.made import record_of, result_of, study_of, throughput_of
from tuner.errors import WrongInput
from tuner.export import exported
from tuner.plan import ExportedPlan, load_plan

LAYER = {"mode": "default", "scope": "layer", "micro_batch": 2, "activation_memory_budget": 0.5}


@pytest.fixture
def plan() -> ExportedPlan:
    record = record_of(strategy=LAYER, number=3, result=result_of(throughput=throughput_of()))
    return exported(study_of(), record)


def written(tmp_path: Path, data: Any) -> Path:
    path = tmp_path / "best.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    return path


def test_what_is_written_is_read(tmp_path: Path, plan: ExportedPlan) -> None:
    assert load_plan(written(tmp_path, plan.model_dump(mode="json"))) == plan


def test_a_knob_that_is_missing_is_baseline(tmp_path: Path, plan: ExportedPlan) -> None:
    data = plan.model_dump(mode="json")
    del data["strategy"]["expandable_segments"]
    assert load_plan(written(tmp_path, data)).strategy == plan.strategy


def refused(tmp_path: Path, data: Any) -> str:
    with pytest.raises(WrongInput) as caught:
        load_plan(written(tmp_path, data))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("budgt_bytes",), 1, ["budgt_bytes: is not a known key", "did you mean 'budget_bytes'?"]),
        (("workload", "adaptr"), "lora", ["workload.adaptr", "did you mean 'adapter'?"]),
        (("measured", "peak_device"), 1, ["measured.peak_device", "'peak_device_bytes'"]),
        (("workload", "lora_rank"), 0, ["workload.lora_rank", "greater than or equal to 1", "not 0"]),
        (("limit_bytes",), "much", ["limit_bytes", "'much'"]),
        (("workload", "lengths", "max"), 1, ["workload.lengths.max", "not 1"]),
        (("strategy", "scop"), "layer", ["knob", "'scop'", "did you mean 'scope'?"]),
        (("strategy", "mode"), "defalt", ["mode", "'defalt'", "did you mean 'default'?"]),
        (("strategy", "micro_batch"), 3, ["micro_batch", "1, 2, 4", "not 3"]),
        (("schema_version",), 2, ["schema_version", "not 2", "newer"]),
        (("schema_version",), "one", ["schema_version"]),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, plan: ExportedPlan, path: tuple[str, ...], value: Any, said: list[str]
) -> None:
    data = plan.model_dump(mode="json")
    place = data
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    message = refused(tmp_path, data)
    for part in said:
        assert part in message


def test_a_missing_key_is_named(tmp_path: Path, plan: ExportedPlan) -> None:
    data = plan.model_dump(mode="json")
    del data["workload"]
    assert refused(tmp_path, data) == "workload: is missing"


@pytest.mark.parametrize("data", [None, [], "text", 3])
def test_a_file_that_is_no_mapping(tmp_path: Path, data: Any) -> None:
    assert "must hold keys and values" in refused(tmp_path, data)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(WrongInput, match=r"none\.yaml cannot be read \(No such file"):
        load_plan(tmp_path / "none.yaml")
    with pytest.raises(WrongInput, match="Is a directory"):
        load_plan(tmp_path)


def test_a_file_that_is_not_yaml(tmp_path: Path) -> None:
    path = tmp_path / "best.yaml"
    path.write_text("a: 1\nb: [1, 2\n")
    with pytest.raises(WrongInput, match="is not YAML, line 3"):
        load_plan(path)
    path.write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(WrongInput, match="is not"):
        load_plan(path)


def test_yaml_cannot_make_objects(tmp_path: Path) -> None:
    path = tmp_path / "best.yaml"
    path.write_text("!!python/object/apply:os.system ['true']\n")
    with pytest.raises(WrongInput, match="is not YAML"):
        load_plan(path)
