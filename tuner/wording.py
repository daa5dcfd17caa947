"""How a record is said to a person, the same on the screen, in the report and in the export."""

from __future__ import annotations

from tuner.advice import short_advice
from tuner.kinds import Flag, Kind, Phase, Replay
from tuner.outcome import Outcome
from tuner.record import TrialRecord
from tuner.units import format_gib

_OUTCOMES: dict[Outcome, str] = {
    Outcome.OK: "ok",
    Outcome.OVER_BUDGET: "over budget",
    Outcome.CONFLICT: "cannot work here",
    Outcome.OOM: "out of memory",
    Outcome.GRAPH_BREAK: "graph break, where a full graph was asked",
    Outcome.COMPILE_ERROR: "failed to compile",
    Outcome.COMPILE_NOT_APPLIED: "not compiled as asked",
    Outcome.WRONG_RESULT: "wrong result",
    Outcome.UNSTABLE: "never settled",
    Outcome.TIMEOUT: "timed out",
    Outcome.CRASH: "crashed",
    Outcome.DEVICE_NOT_CLEAN: "the device was not clean",
    Outcome.INTERRUPTED: "interrupted",
}
_KINDS: dict[Kind, str] = {
    Kind.RECOMPILE_LIMIT: "recompile limit reached",
    Kind.NO_GRADIENT: "no gradient",
    Kind.NAN: "NaN",
    Kind.NUMERICS: "gradients differ from the reference",
    Kind.CHECKPOINT_MISMATCH: "recomputation does not match",
    Kind.SUSPECTED: "suspected from several signs",
    Kind.UNSUPPORTED_BY_MODEL: "the model does not support it",
}
_FLAGS: dict[Flag, str] = {
    Flag.TIGHT: "the allocator had to flush and retry while training: there is no room to spare",
    Flag.NOISY: "step times never levelled, or their median is not known to 1 %: the throughput is less certain",
    Flag.NO_EFFECT: "a knob changed nothing; a line beside it names which",
    Flag.EMULATED: "a smaller card was emulated under a cap",
    Flag.UNCHECKED: "loss and gradients were not compared: no eager reference ran, or dropout was on",
    Flag.CHECKED_ON_SLICE: "loss and gradients were compared with eager ones on 2 layers without dropout",
    Flag.SHARED_CARD: "another process used the card meanwhile, so no figure is certain",
    Flag.COLD: "the compile cache was empty",
    Flag.WARM: "compiled code came from the cache, so its compile time is not that of a first run",
}


def outcome_words(outcome: Outcome) -> str:
    """The outcome as a person says it."""
    return _OUTCOMES[outcome]


def replay_of(record: TrialRecord) -> Replay | None:
    """What `longest_batch` was replaying where it ended; None: it ended elsewhere, or that is not known."""
    if record.phase is not Phase.LONGEST_BATCH:
        return None
    # In the detail, since a worker that was killed for its memory left no result.
    return next((replay for replay in Replay if replay.words in record.detail), None)


def cause(record: TrialRecord) -> str:
    """Outcome, kind and place in one phrase: ``out of memory in first_step``, ``out of memory in an evaluation``."""
    kind = f" ({_KINDS[record.kind]})" if record.kind else ""
    replay = replay_of(record)
    where = replay.words if replay else f"in {record.phase}"
    phase = f" {where}" if record.phase and record.outcome is not Outcome.OK else ""
    return outcome_words(record.outcome) + kind + phase


def headroom_bytes(record: TrialRecord, limit_bytes: int) -> int | None:
    """Limit minus peak device; None where the peak is not known."""
    return None if record.peak_device_bytes is None else limit_bytes - record.peak_device_bytes


def figures(record: TrialRecord, limit_bytes: int) -> str:
    """Throughput, peak and headroom: ``17,084 tokens/s, 22.08 GiB, 0.72 GiB to spare``."""
    parts = [] if record.tokens_per_s is None else [f"{record.tokens_per_s:,.0f} tokens/s"]
    room = headroom_bytes(record, limit_bytes)
    if room is not None:
        parts.append(format_gib(record.peak_device_bytes))
        parts.append(f"{format_gib(room)} to spare" if room >= 0 else f"{format_gib(-room)} too much")
    return ", ".join(parts)


def result_words(record: TrialRecord, limit_bytes: int) -> str:
    """What happened to a trial, in one line: figures where there are any, else the cause."""
    if record.role == "twin" and record.outcome is Outcome.OK:
        return f"{cause(record)}: {record.detail}"  # it measures neither speed nor peak
    if record.outcome in (Outcome.OK, Outcome.OVER_BUDGET):
        remark = f" ({record.detail})" if record.outcome is Outcome.OK and record.detail else ""
        return f"{cause(record)}: {figures(record, limit_bytes)}{remark}"
    to_do = short_advice(record.outcome, record.kind)
    return cause(record) + (f": {record.detail}" if record.detail else "") + (f"; {to_do}" if to_do else "")


def flag_words(flag: Flag, device_name: str) -> str:
    """What a flag means; of an emulated budget also on which card."""
    where = f", measured on {device_name}" if flag is Flag.EMULATED else ""
    return f"{flag}: {_FLAGS[flag]}{where}"
