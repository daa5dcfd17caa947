"""Which variables of the user's environment a worker inherits, and which would change what is measured."""

from __future__ import annotations

from collections.abc import Mapping

_SETTINGS = (
    # The allocator's: a knob sets them, and expandable segments must be off where its value says so.
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "CUDA_LAUNCH_BLOCKING",
    # TORCH_COMPILE_JOB_ID shares compiled code of another job, TORCH_COMPILE_DISABLE leaves all eager.
    "TORCH_COMPILE_",
    "TORCHINDUCTOR_",
    "TORCHDYNAMO_",
    "TORCH_DYNAMO_",
    "INDUCTOR_",
    "TORCH_CUDAGRAPH",
    "TRITON_INTERPRET",
    # What is logged costs time, and our own listeners sit on these loggers.
    "TORCH_LOGS",
    "TORCH_TRACE",
)
"""Beginnings of names. Paths, compilers, proxies and what Triton and CUDA need to be found stay."""


def handed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a worker inherits of `environment`."""
    return {name: value for name, value in environment.items() if not name.startswith(_SETTINGS)}


def left_out(environment: Mapping[str, str]) -> list[str]:
    """Return the names that are not handed on, sorted."""
    return sorted(name for name in environment if name.startswith(_SETTINGS))
