"""What a search is asked for: YAML and flags to one `StudySpec`, and from that to workload, target and filters."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from strategies.knob import Target, Value
from tuner.cards import find_card
from tuner.errors import WrongInput, nearest
from tuner.kinds import Phase
from tuner.model_source import find_function, find_model
from tuner.space import default_allowed, filter_values
from tuner.units import GIB, parse_count, parse_duration
from tuner.workload import EVAL_BATCH_SIZE, Adapter, Lengths, Precision, Workload

SLOW_FROM_SECONDS = 3600.0
"""The time budget from which values that take minutes to compile are proposed unasked."""


class StudySpec(BaseModel):
    """Everything that `tuner search` takes; the same names as keys of a YAML file and as flags."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str | None = None
    """A built-in shape, a folder, a hub id, or module:function; None: the default of the device."""
    loss: str | None = None
    batch_fn: str | None = None
    init: Literal["random", "pretrained"] = "random"
    adapter: Adapter | None = None
    lora_rank: int = Field(default=16, ge=1)
    lora_targets: str = "all-linear"
    dropout: float = Field(default=0.0, ge=0, lt=1)
    precision: Precision | None = None
    seq_len: int | None = Field(default=None, ge=2)
    lengths: str | None = None
    """``lognormal:mean=700,max=2048`` or the path of a file with one length a line."""
    batch_size: int = Field(default=8, ge=1)
    drop_last: bool = True
    """False: the last batch of an epoch may lack sequences."""
    eval: bool = False
    """Is there an evaluation between optimizer steps?"""
    eval_batch_size: int | None = Field(default=None, ge=1)
    """Sequences of an evaluation's forward; None: `EVAL_BATCH_SIZE`."""
    device: str | None = None
    """``cpu``, ``cuda`` or ``cuda:N``; None: the first card, else the CPU."""
    budget_gb: float | None = None
    """GiB; None: what the device has."""
    card: str | None = None
    """A card of `tuner.cards` to search for, in place of a budget."""
    shared_card: bool = False
    fix: dict[str, Any] = Field(default_factory=dict)
    knob: dict[str, Any] = Field(default_factory=dict)
    sampler: Literal["tpe", "gp", "random"] = "tpe"
    trials: int | None = Field(default=None, ge=1)
    """Launches of this invocation, the proof not counted; None: no bound."""
    train_steps: int | None = None
    """Optimizer steps of the planned run, to rank by with its compiling; None: throughput alone counts."""
    time_budget: str = "30m"
    seed: int = Field(default=0, ge=0)
    study: str | None = None
    storage: str | None = None
    cold: bool = False
    deadline: dict[Phase, float] = Field(default_factory=dict)

    @field_validator("budget_gb")
    @classmethod
    def _positive(cls, value: float | None) -> float | None:
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ValueError("must be a positive number of GiB")
        return value

    @field_validator("card")
    @classmethod
    def _known_card(cls, value: str | None) -> str | None:
        return None if value is None else find_card(value).name

    @field_validator("train_steps", mode="before")
    @classmethod
    def _whole(cls, value: object) -> int | None:
        return None if value is None else parse_count(value)

    @field_validator("time_budget", mode="before")
    @classmethod
    def _duration(cls, value: object) -> str:
        text = str(value)
        if parse_duration(text) <= 0:
            raise ValueError("must be longer than nothing")
        return text

    @field_validator("deadline")
    @classmethod
    def _positive_deadlines(cls, value: dict[Phase, float]) -> dict[Phase, float]:
        if any(not (math.isfinite(seconds) and seconds > 0) for seconds in value.values()):
            raise ValueError("must be a positive number of seconds")
        return value

    @field_validator("study")
    @classmethod
    def _name(cls, value: str | None) -> str | None:
        # It names a folder too.
        if value is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", value):
            raise ValueError("must be letters, digits, '.', '_' and '-'")
        return value

    @property
    def time_budget_seconds(self) -> float:
        """The time budget in seconds."""
        return parse_duration(self.time_budget)

    @property
    def budget_bytes(self) -> int | None:
        """The budget in bytes; None: what the device, or the card that was named, has."""
        return None if self.budget_gb is None else int(self.budget_gb * GIB)


def read_spec(path: Path | None, flags: Mapping[str, Any]) -> StudySpec:
    """Return the spec of a YAML file with the flags laid over it.

    Raises:
        WrongInput: the file cannot be read, a key is not known, or a value breaks its rule.
    """
    values: dict[str, Any] = {} if path is None else _read_yaml(path)
    for one, other in (("card", "budget_gb"), ("budget_gb", "card")):
        if flags.get(one) is not None and flags.get(other) is None:
            values.pop(other, None)  # a flag wins over the file's word on the same thing
    for name, value in flags.items():
        if isinstance(value, dict) and isinstance(values.get(name), dict):
            values[name] = {**values[name], **value}
        else:
            values[name] = value
    try:
        spec = StudySpec.model_validate(values)
    except ValidationError as error:
        raise _explain(error) from error
    if spec.eval_batch_size is not None and not spec.eval:
        raise WrongInput("eval-batch-size", "needs --eval: it is the size of an evaluation", spec.eval_batch_size)
    if spec.card is not None and spec.budget_gb is not None:
        raise WrongInput("card", "is not given beside budget_gb: it sets the budget to the card's own size", spec.card)
    return spec


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text())
    except OSError as error:
        raise WrongInput("spec", f"{path} cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        raise WrongInput("spec", f"{path} is not YAML: it cannot be parsed{where}") from error
    if not isinstance(data, dict):
        raise WrongInput("spec", f"{path} must hold keys and values, such as `budget_gb: 24`")
    return {str(key).replace("-", "_"): value for key, value in data.items()}


def _explain(error: ValidationError) -> WrongInput:
    first = error.errors()[0]
    loc = [str(part) for part in first["loc"] if part != "[key]"]
    # A key that is not known is said of the mapping that holds it.
    field = ".".join(loc[:-1] if "[key]" in first["loc"] else loc)
    if first["type"] == "extra_forbidden":
        return WrongInput(field, "is not a known key", hint=nearest(field, StudySpec.model_fields))
    shown = field.replace("_", "-") if "." not in field else field
    if first["type"] in ("enum", "literal_error"):
        expected = first["ctx"]["expected"].replace("'", "")
        hint = nearest(str(first["input"]), re.split(r", | or ", expected))
        return WrongInput(shown, f"must be one of {expected}", first["input"], hint)
    message = first["msg"].removeprefix("Value error, ").replace("Input should be ", "must be ", 1)
    return WrongInput(shown, message, first["input"])


def parse_lengths(text: str | None, seq_len: int) -> tuple[Lengths, dict[str, str]]:
    """Return the lengths that ``--lengths`` and ``--seq-len`` ask for.

    Raises:
        WrongInput: the text is neither a distribution nor a file of lengths.
    """
    if text is None:
        return Lengths.fixed(seq_len), {}
    if text.startswith("lognormal:"):
        return _lognormal(text), {}
    path = Path(text).expanduser()
    try:
        values = tuple(int(word) for word in path.read_text().split())
        return Lengths(kind="list", max=max(values), values=values), {}
    except OSError as error:
        raise WrongInput(
            "lengths", f"must be lognormal:mean=M,max=N or a file of lengths ({error.strerror})", text
        ) from error
    except (ValueError, UnicodeDecodeError) as error:
        raise WrongInput("lengths", f"{path} must hold whole numbers of 2 or more, with white space between") from error


def _lognormal(text: str) -> Lengths:
    try:
        given = {k.strip(): float(v) for k, v in (part.split("=") for part in text.partition(":")[2].split(","))}
        known = {"mean", "max", "sigma"}
        if not {"mean", "max"} <= set(given) <= known or not all(map(math.isfinite, given.values())):
            raise ValueError(text)
        sigma = given.get("sigma", 0.6)
        if not 2 <= given["mean"] <= given["max"] or sigma <= 0:
            raise ValueError(text)
        return Lengths(kind="lognormal", max=int(given["max"]), mean=given["mean"], sigma=sigma)
    except ValueError as error:
        raise WrongInput("lengths", "must have the form lognormal:mean=700,max=2048 (and sigma=0.6)", text) from error


def make_workload(spec: StudySpec, device_type: str) -> tuple[Workload, list[str]]:
    """Return the workload, and a line for each thing that was assumed.

    Raises:
        WrongInput: the model, a function or the lengths cannot be found or used.
    """
    assumed: list[str] = []
    on_card = device_type == "cuda"

    def default(name: str, given: Any, value: Any) -> Any:
        if given is None:
            assumed.append(f"{name} {value}")
            return value
        return given

    source = find_model(default("model", spec.model, "llama-7b" if on_card else "tiny"))
    adapter = default("adapter", spec.adapter, Adapter.LORA if on_card and spec.model is None else Adapter.FULL)
    mixed = Precision.BF16_TRUE if adapter is Adapter.FULL else Precision.BF16_MIXED
    if spec.card is not None and not find_card(spec.card).has_bf16:
        mixed = Precision.FP16_MIXED
    precision = default("precision", spec.precision, mixed if on_card else Precision.FP32_TRUE)
    if spec.lengths is not None and spec.seq_len is not None:
        raise WrongInput("seq-len", "is not given beside lengths, which say how long a sequence is", spec.seq_len)
    usual = 2048 if on_card or spec.model is not None else 128
    seq_len = spec.seq_len or (usual if spec.lengths else default("seq-len", None, usual))
    lengths, _ = parse_lengths(spec.lengths, seq_len)
    evaluated = default("eval-batch-size", spec.eval_batch_size, EVAL_BATCH_SIZE) if spec.eval else EVAL_BATCH_SIZE
    sources = dict(source.sources)
    functions = {}
    for field in ("loss", "batch_fn"):
        if (given := getattr(spec, field)) is not None:
            functions[field], found = find_function(field, given)
            sources |= found
    if spec.init == "pretrained" and source.kind not in ("folder", "hub"):
        raise WrongInput("init", "is pretrained only where the model is a folder or a hub id", spec.init)
    assumed.append(
        f"{spec.init} weights" + ("" if spec.init == "pretrained" else " (memory and speed do not depend on them)")
    )
    workload = Workload(
        model=source.model, model_kind=source.kind, config=source.config, sources=sources,
        loss=functions.get("loss"), batch_fn=functions.get("batch_fn"), init=spec.init, adapter=adapter,
        lora_rank=spec.lora_rank, lora_targets=spec.lora_targets, dropout=spec.dropout, precision=precision,
        lengths=lengths, batch_size=spec.batch_size, drop_last=spec.drop_last, eval=spec.eval,
        eval_batch_size=evaluated,
    )  # fmt: skip
    return workload, assumed


def make_target(workload: Workload, device_type: str, emulated: bool, multiprocessors: int | None) -> Target:
    """Return the facts that a knob's rules may read."""
    return Target(
        device_type=device_type,
        batch_size=workload.batch_size,
        adapter=workload.adapter,
        dropout=workload.dropout,
        precision=workload.precision,
        lengths_vary=workload.lengths.vary,
        emulated=emulated,
        multiprocessors=multiprocessors,
        layers=workload.layers,
        is_moe=workload.is_moe,
    )


def make_filter(spec: StudySpec, target: Target) -> tuple[dict[str, tuple[Value, ...]], list[str]]:
    """Return the values that may be proposed, by knob, and a line about those that join or stay out.

    Raises:
        WrongInput: an unknown knob or value, or a knob that is both fixed and filtered.
    """
    slow = spec.time_budget_seconds >= SLOW_FROM_SECONDS
    allowed = default_allowed(target, include_slow=slow)
    notes = []
    for name, given in {**spec.knob, **spec.fix}.items():
        values = given if isinstance(given, list) else [given]
        if name in spec.fix and name in spec.knob:
            raise WrongInput(name, "is either fixed or filtered, not both")
        if name in spec.fix and (len(values) != 1 or values == ["all"]):
            raise WrongInput(name, "must be fixed to one value", given)
        allowed[name] = filter_values(name, values, target)
    if slow and "mode" not in {*spec.fix, *spec.knob} and target.device_type == "cuda":
        notes.append("the time budget is an hour or more: the max-autotune modes take part; a compile takes minutes")
    return allowed, notes


def inherited_environment() -> dict[str, str]:
    """Return the environment that workers inherit: this process's own."""
    return dict(os.environ)
