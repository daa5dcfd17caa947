"""The closed lists of words that a trial is told in: phases, kinds, flags, classes of failure."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """An interval of measuring, in this order."""

    START = "start"
    """From exec to the first byte of the model."""
    LOAD = "load"
    WARMUP_BATCH = "warmup_batch"
    """Only where the strategy has one."""
    FIRST_STEP = "first_step"
    SETTLE = "settle"
    STEADY = "steady"
    LONGEST_BATCH = "longest_batch"
    """Only where there is something to replay (`Replay`)."""


class Replay(StrEnum):
    """What `longest_batch` replays after training has been measured, in this order."""

    LONGEST = "longest"
    """A step of nothing but the longest sequences, where lengths vary."""
    SKEWED = "skewed"
    """The longest sequences of one repeated token, where the model has experts: all of it goes to the same ones."""
    PARTIAL = "partial"
    """One sequence less than a whole batch, where the last batch is kept; then a whole one again."""
    EVALUATION = "evaluation"
    """Forwards without gradients, where the workload has an evaluation; then a step of training again."""

    @property
    def words(self) -> str:
        """Where something happened, for a sentence."""
        return {
            Replay.LONGEST: "in the longest batch",
            Replay.SKEWED: "with all tokens routed to the same experts",
            Replay.PARTIAL: "in a partial last batch",
            Replay.EVALUATION: "in an evaluation",
        }[self]


class Kind(StrEnum):
    """The finer cause within an outcome."""

    RECOMPILE_LIMIT = "recompile_limit"
    NO_GRADIENT = "no_gradient"
    NAN = "nan"
    NUMERICS = "numerics"
    CHECKPOINT_MISMATCH = "checkpoint_mismatch"
    SUSPECTED = "suspected"
    UNSUPPORTED_BY_MODEL = "unsupported_by_model"


class Flag(StrEnum):
    """A remark beside an outcome."""

    TIGHT = "tight"
    """The allocator had to flush and retry in `steady`, or memory ran out there and something caught it."""
    NOISY = "noisy"
    """Step times never levelled, or their median is not known within 1 %."""
    NO_EFFECT = "no_effect"
    """A knob changed nothing; the detail names it."""
    EMULATED = "emulated"
    """Measured on a larger card under the cap."""
    UNCHECKED = "unchecked"
    """Loss and gradients were not compared with a reference's."""
    CHECKED_ON_SLICE = "checked_on_slice"
    """Loss and gradients were compared on two layers of the model, not at full depth."""
    SHARED_CARD = "shared_card"
    COLD = "cold"
    """The compile cache was empty when the worker started."""
    WARM = "warm"


class FailureClass(StrEnum):
    """What kind of exception ended a worker, decided by its type in ``worker/failure.py``."""

    OOM = "oom"
    GRAPH_BREAK = "graph_break"
    COMPILE_ERROR = "compile_error"
    COMPILE_NOT_APPLIED = "compile_not_applied"
    WRONG_RESULT = "wrong_result"
    UNSTABLE = "unstable"
    CONFLICT = "conflict"
    USER_CODE = "user_code"
    """The user's own model, loss or batch function raised: wrong input, no trial's outcome."""
    ENVIRONMENT = "environment"
    """The machine lost what it had at the start (disk, cache folder, compiler): no trial's outcome."""
    OTHER = "other"


class KillReason(StrEnum):
    """Why the parent killed a worker."""

    DEADLINE = "deadline"
    """A phase took longer than it may."""
    MEMORY = "memory"
    """On a CPU: resident memory went past the limit."""
    HOST_MEMORY = "host_memory"
    """On a CPU: worker and compilers together went past what the machine has."""
    FOREIGN = "foreign"
    """Memory of another process appeared on the device."""
    CANCELLED = "cancelled"
    """The study ended, or the user stopped it."""
