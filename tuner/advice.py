"""What a person can do about a trial that did not end `ok`: one sentence for each cause."""

from __future__ import annotations

from tuner.kinds import Kind
from tuner.outcome import Outcome

SHORT = 60
"""Characters that still go on the line of a finished trial."""

_ADVICE: dict[tuple[Outcome, Kind | None], str] = {
    (Outcome.OOM, Kind.SUSPECTED): "no out-of-memory error was raised, the log told: measure it again with tuner run",
    (Outcome.GRAPH_BREAK, Kind.UNSUPPORTED_BY_MODEL): "leave fullgraph off, or change the line that it names",
    (Outcome.COMPILE_ERROR, Kind.RECOMPILE_LIMIT): (
        "dynamic=true or fewer different lengths; no attribute that changes from call to call or layer to layer"
    ),
    (Outcome.COMPILE_ERROR, None): "a fault of torch or Triton: another mode or scope, or a newer torch",
    (Outcome.COMPILE_NOT_APPLIED, Kind.RECOMPILE_LIMIT): (
        "dynamic=true or fewer different lengths; no attribute that changes from call to call or layer to layer"
    ),
    (Outcome.COMPILE_NOT_APPLIED, None): (
        "another scope; look for torch.compiler.disable, wrapped forwards and calls that were kept from before"
    ),
    (Outcome.WRONG_RESULT, Kind.NO_GRADIENT): (
        "use_reentrant=False in the model's own checkpointing; else look for what is frozen or detached"
    ),
    (Outcome.WRONG_RESULT, Kind.NAN): "where eager is NaN too: precision, or data; else not this strategy",
    (Outcome.WRONG_RESULT, Kind.NUMERICS): "do not train with it: another mode, scope or activation memory budget",
    (Outcome.WRONG_RESULT, Kind.CHECKPOINT_MISMATCH): (
        "checkpointing inside what is compiled (scope layer or whole); a forward that does the same each time"
    ),
    (Outcome.UNSTABLE, None): "fewer lengths or dynamic=true; if memory rises, look for tensors that are kept",
    (Outcome.TIMEOUT, None): "--deadline PHASE=SECONDS gives it longer",
    (Outcome.CRASH, None): "worker.log in the trial's folder has all that it said",
    (Outcome.DEVICE_NOT_CLEAN, None): "end what else uses the card, or give --shared-card",
}


def advice(outcome: Outcome, kind: Kind | None) -> str | None:
    """Return what to do; None: nothing need be, since a search tries other strategies by itself."""
    return _ADVICE.get((outcome, kind))


def short_advice(outcome: Outcome, kind: Kind | None) -> str | None:
    """Return it where it is short enough for the line of a finished trial."""
    said = advice(outcome, kind)
    return said if said is not None and len(said) <= SHORT else None
