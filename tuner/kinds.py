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
    """Only where lengths vary, or the workload has a partial last batch or an evaluation."""


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
    """The allocator had to flush and retry in `steady`."""
    NOISY = "noisy"
    """Step times never levelled, or their median is not known within 1 %."""
    NO_EFFECT = "no_effect"
    """A knob changed nothing; the detail names it."""
    EMULATED = "emulated"
    """Measured on a larger card under the cap."""
    UNCHECKED = "unchecked"
    """Loss and gradients were not compared with a reference's."""
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
