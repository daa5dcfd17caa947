"""The folder of one trial: the whole protocol between parent and worker, as files.

``request.json`` from the parent; ``events.jsonl``, ``result.json`` and ``worker.log`` from the
worker. A file is written under a temporary name and renamed, so that a reader sees all or nothing;
events are appended, one write for each line.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from tuner.protocol import Event, TrialRequest, TrialResult
from tuner.workload import Frozen

RESULT_MISSING = "result.json is missing"
_TAIL_BYTES = 2**16


@dataclass(frozen=True, slots=True)
class EventBatch:
    """What was new in ``events.jsonl``."""

    events: tuple[Event, ...]
    offset: int
    """Where to go on reading."""
    broken: tuple[str, ...] = ()
    """Whole lines that are no event."""


class TrialDir:
    """Paths, writers and readers of one trial's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.request_path = path / "request.json"
        self.events_path = path / "events.jsonl"
        self.result_path = path / "result.json"
        self.log_path = path / "worker.log"

    @classmethod
    def create(cls, root: Path, study: str, name: str) -> Self:
        """Make ``root/study/name`` and return it; ``name.1`` and so on where that exists.

        `name` is the trial's number, ``proof-N`` or a uuid. A folder is never used twice: what an
        earlier trial left there would be taken for the new one's.
        """
        for suffix in ["", *(f".{n}" for n in range(1, 10_000))]:
            path = root / study / f"{name}{suffix}"
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                continue
            return cls(path)
        raise FileExistsError(str(root / study / name))

    def write_request(self, request: TrialRequest) -> None:
        """Write what the worker is told."""
        _write_whole(self.request_path, _to_json(request))

    def read_request(self) -> TrialRequest:
        """Return what the worker is told.

        Raises:
            OSError: there is no request.
            pydantic.ValidationError: it is not one that this version understands.
        """
        return TrialRequest.model_validate_json(self.request_path.read_bytes())

    def append_event(self, event: Event) -> None:
        """Append one line. Worker's side; one write, so that no reader sees two lines mixed."""
        descriptor = os.open(self.events_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, (_to_json(event) + "\n").encode())
        finally:
            os.close(descriptor)

    def events_size(self) -> int:
        """Return the size of ``events.jsonl`` in bytes; 0 where there is none."""
        try:
            return self.events_path.stat().st_size
        except FileNotFoundError:
            return 0

    def read_events(self, offset: int = 0) -> EventBatch:
        """Return the events behind `offset`; half a last line is left for the next call."""
        try:
            with self.events_path.open("rb") as stream:
                stream.seek(offset)
                data = stream.read()
        except FileNotFoundError:
            return EventBatch((), offset)
        whole = data[: data.rfind(b"\n") + 1]
        events, broken = _parse_events(whole)
        return EventBatch(events, offset + len(whole), broken)

    def write_result(self, result: TrialResult) -> None:
        """Write what was measured; once, whether the worker failed or not."""
        _write_whole(self.result_path, _to_json(result))

    def read_result(self, trial_uuid: str | None = None) -> TrialResult | str:
        """Return the result, or one sentence that says why there is none (`RESULT_MISSING`, …).

        `trial_uuid`: whose result it has to be.
        """
        try:
            data = json.loads(self.result_path.read_bytes())
        except FileNotFoundError:
            return RESULT_MISSING
        except ValueError as error:
            return f"result.json is not whole JSON: {error}"
        return _validate_result(data, trial_uuid)

    def tail(self, lines: int = 40) -> str:
        """Return the last lines of ``worker.log``; empty where there is no log."""
        try:
            with self.log_path.open("rb") as stream:
                stream.seek(0, os.SEEK_END)
                stream.seek(max(0, stream.tell() - _TAIL_BYTES))
                text = stream.read().decode(errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-lines:])


def _validate_result(data: object, trial_uuid: str | None) -> TrialResult | str:
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version != 1:
        return f"result.json has schema version {version!r}, not 1"
    try:
        result = TrialResult.model_validate_json(json.dumps(data))
    except ValidationError as error:
        first = error.errors()[0]
        return f"result.json: {'.'.join(map(str, first['loc']))}: {first['msg']}"
    if trial_uuid is not None and result.trial_uuid != trial_uuid:
        return f"result.json is of trial {result.trial_uuid}, not {trial_uuid}"
    return result


def _parse_events(whole: bytes) -> tuple[tuple[Event, ...], tuple[str, ...]]:
    events: list[Event] = []
    broken: list[str] = []
    for line in whole.splitlines():
        try:
            events.append(Event.model_validate_json(line))
        except ValidationError:
            broken.append(line.decode(errors="replace"))
    return tuple(events), tuple(broken)


def _to_json(model: Frozen) -> str:
    # Not model_dump_json: that writes NaN as null, and a loss of NaN must arrive as what it is.
    return json.dumps(model.model_dump(mode="json"))


def _write_whole(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)
