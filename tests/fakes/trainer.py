"""A worker without torch: what a strategy comes to is taken from a formula (`landscape`).

``fake.json`` in the folder of studies is a list of rules; the first that applies says what happens
instead. A rule: ``when`` (values of the strategy), ``proof`` (of proofs alone, or of none of them),
``times`` (how often it applies, for ever unless said), ``do``: ``crash``, ``hang``, ``sleep``
(``seconds``), ``wait_after_result``, ``user_code``, ``fail`` (``failure_class``, ``phase``), or ``scale`` (``by``).
"""

import json
import os
import time

from landscape import parity
from landscape import result as landscape
from say import HERE, REQUEST, phase, result

ROOT = HERE.parents[1]


def rule():
    try:
        rules = json.loads((ROOT / "fake.json").read_text())
    except FileNotFoundError:
        return {"do": "nothing"}
    proof = HERE.name.startswith("proof")
    for number, found in enumerate(rules):
        when = found.get("when", {}).items()
        fits = all(REQUEST["strategy"][knob] == value for knob, value in when)
        if fits and found.get("proof", proof) == proof and take(number, found.get("times")):
            return found
    return {"do": "nothing"}


def take(number, times):
    if times is None:
        return True
    counter = ROOT / f"fake-{number}"
    used = len(counter.read_text()) if counter.exists() else 0
    counter.write_text("x" * (used + 1))
    return used < times


chosen = rule()
what = chosen["do"]
phase("load")
phase("first_step")
if what == "crash":
    os._exit(3)
if what in ("hang", "sleep"):
    time.sleep(chosen.get("seconds", 600))
failure = None
if what == "user_code":
    failure = ("user_code", "load")
if what == "fail":
    failure = (chosen["failure_class"], chosen.get("phase", "first_step"))
made = {"throughput": None} | landscape(REQUEST["strategy"], REQUEST["limit_bytes"], chosen.get("by", 1.0), failure)
if REQUEST.get("twin"):
    made |= {"throughput": None, "twin_parity": parity(), "layers": 2}
else:
    phase("settle")
    phase("steady")
result(**made)
if what == "wait_after_result":
    time.sleep(600)
