"""What fake workers write: plain JSON, no imports of ours, so that they start at once."""

import json
import os
import pathlib
import sys
import time

HERE = pathlib.Path(sys.argv[1])
REQUEST = json.loads((HERE / "request.json").read_text())


def phase(name):
    event("phase", name)


def event(kind, name):
    line = json.dumps({"time": time.time(), "event": kind, "phase": name}) + "\n"
    with (HERE / "events.jsonl").open("a") as stream:
        stream.write(line)


def result(**fields):
    steady = {"tokens_per_s": 100.0, "step_seconds": 1, "step_seconds_p10": 1, "step_seconds_p90": 1}
    whole = {
        "schema_version": 1,
        "trial_uuid": REQUEST["trial_uuid"],
        "throughput": steady | {"steps": 5, "tokens_per_step": 100},
    }
    (HERE / "temporary").write_text(json.dumps(whole | fields))
    os.replace(HERE / "temporary", HERE / "result.json")
