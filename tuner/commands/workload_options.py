"""The flags that say what is trained, on what, and within which budget: one for each key of a spec."""

from __future__ import annotations

import argparse
from typing import Any

from tuner.errors import WrongInput

_PAIRS = ("fix", "knob", "deadline")
_BATCH_FN = (
    "module:function(device, sequences, length) -> dict, called once for all sequences of an optimizer step, with "
    "seeded generators; tensors with a row for each sequence are cut into micro-batches"
)
_NOT_IN_SPEC = ("spec", "json", "command", "run", "parser")


def add_workload_options(parser: argparse.ArgumentParser) -> None:
    """Add model, adapter, precision, lengths and batch size."""
    group = parser.add_argument_group("what is trained")
    group.add_argument(
        "--model",
        metavar="M",
        help="a built-in shape (llama-7b, llama-1b, llama-160m, tiny, qwen-1.5b, mistral-7b, olmoe-1b-7b), a folder "
        "with a config.json, a hub id, or module:function / file.py:function; llama-7b on a card, tiny on a CPU",
    )
    group.add_argument(
        "--loss", metavar="F", help="module:function(model, batch) -> mean loss, for a model of your own"
    )
    group.add_argument("--batch-fn", metavar="F", help=_BATCH_FN)
    group.add_argument("--init", metavar="HOW", help="random (the default; figures do not depend on it) or pretrained")
    group.add_argument(
        "--adapter", metavar="A", help="full, lora or qlora; lora for the default model on a card, else full"
    )
    group.add_argument("--lora-rank", metavar="N", help="16 unless said")
    group.add_argument("--lora-targets", metavar="T", help="all-linear unless said, or names with commas between")
    group.add_argument("--dropout", metavar="P", help="0 unless said")
    group.add_argument(
        "--precision",
        metavar="P",
        help="bf16-true, bf16-mixed, fp16-mixed or 32-true; bf16-mixed under an adapter, bf16-true without, 32-true on "
        "a CPU",
    )
    group.add_argument(
        "--seq-len", metavar="N", help="tokens of every sequence; 2048 unless said (128 for a CPU's default)"
    )
    group.add_argument("--lengths", metavar="L", help="lognormal:mean=700,max=2048, or a file of lengths")
    group.add_argument("--batch-size", metavar="N", help="sequences per optimizer step; 8 unless said")
    group.add_argument(
        "--no-drop-last",
        dest="drop_last",
        action="store_false",
        default=None,
        help="your loader keeps a last batch that is not full: one is run too before a strategy counts as fitting",
    )
    group.add_argument(
        "--eval",
        action="store_true",
        default=None,
        help="your script evaluates in between: an evaluation is run too before a strategy counts as fitting",
    )
    group.add_argument(
        "--eval-batch-size", metavar="N", help="sequences that the evaluation takes at once; 8 unless said"
    )


def add_device_options(parser: argparse.ArgumentParser) -> None:
    """Add device, budget and what belongs to them."""
    group = parser.add_argument_group("where")
    group.add_argument(
        "--budget-gb", metavar="GIB", help="what the card to train on has, in GiB; this device's unless said"
    )
    group.add_argument(
        "--card",
        metavar="NAME",
        help="instead of --budget-gb: a card to search for, with what it really gives a process: "
        "rtx4090, rtx3090, a10, a10g, l4, t4, a100-40, rtx5090, l40s",
    )
    group.add_argument("--device", metavar="D", help="cuda, cuda:N or cpu; the first card unless said")
    group.add_argument(
        "--shared-card",
        action="store_true",
        default=None,
        help="accept that others compute on the card; every figure is flagged",
    )
    group.add_argument("--seed", metavar="N", help="0 unless said")
    group.add_argument(
        "--deadline", action="append", metavar="PHASE=S", help="seconds that a phase may take, as first_step=600"
    )


def spec_flags(args: argparse.Namespace) -> dict[str, Any]:
    """Return the flags that were given, as keys of a spec.

    Raises:
        WrongInput: a ``NAME=VALUE`` flag has another form.
    """
    given = {k: v for k, v in vars(args).items() if v is not None and k not in _NOT_IN_SPEC}
    for name in _PAIRS:
        if name in given:
            given[name] = dict(_pair(name, text) for text in given[name])
    return given


def _pair(flag: str, text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise WrongInput(flag, "must have the form NAME=VALUE", text)
    values = [part.strip() for part in value.split(",")]
    return name.strip(), values if flag == "knob" else value.strip()
