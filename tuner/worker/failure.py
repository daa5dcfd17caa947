"""From an exception to its class and kind, by type; by text only where torch raises plain RuntimeErrors."""

from __future__ import annotations

import contextlib
import re
import traceback as tracebacks
from collections.abc import Iterator

import torch

from tuner.build import BuildConflict
from tuner.kinds import FailureClass, Kind, Phase
from tuner.protocol import Failure
from tuner.worker import reentrant
from tuner.worker.check_cause import machine_fault
from tuner.worker.user_code import UserCodeError, users_code

_TRIED = re.compile(r"Tried to allocate ([\d.]+) (KiB|MiB|GiB|bytes)")
_ALLOCATED = re.compile(r"Of the allocated memory ([\d.]+) (KiB|MiB|GiB|bytes) is allocated by PyTorch")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_RECOMPILED = re.compile(r"filename: '([^']+)'.*?line number: (\d+)", re.DOTALL)
_GUARD = re.compile(r"^\s*- (.+)$", re.MULTILINE)
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}

# Plain RuntimeErrors, by their text: (pattern, class, kind). Each pattern is what torch raises, with its source.
_BY_TEXT: tuple[tuple[str, FailureClass, Kind | None], ...] = (
    # c10/core/impl/alloc_cpu.cpp
    (r"DefaultCPUAllocator: (can't|not enough memory)", FailureClass.OOM, None),
    # cuBLAS and cuDNN handles and workspaces, outside the caching allocator
    (r"CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED", FailureClass.OOM, Kind.SUSPECTED),
    # the driver itself, outside the caching allocator
    (r"CUDA error: out of memory", FailureClass.OOM, Kind.SUSPECTED),
    # torch/_dynamo/eval_frame.py, the stance of the steady phase
    (r"fail_on_recompile", FailureClass.UNSTABLE, None),
    # torch/csrc/autograd: backward of a loss that hangs on nothing that requires a gradient
    (r"does not require grad and does not have a grad_fn", FailureClass.WRONG_RESULT, Kind.NO_GRADIENT),
    # torch/_inductor/cudagraph_trees.py
    (r"CUDAGraphs? that has been overwritten|overwritten by a subsequent run", FailureClass.CONFLICT, None),
    (r"graph recording observed an input tensor deallocate", FailureClass.CONFLICT, None),
)


_OF_DEVICE = re.compile(r"CUDA error|CUBLAS_STATUS|CUDNN_STATUS|NCCL")
"""No mistake of the user's, whoever called."""


class NotWhatItSays(Exception):
    """Raised by the measuring itself: the trial is not what its strategy says."""

    def __init__(self, failure_class: FailureClass, kind: Kind | None, detail: str) -> None:
        super().__init__(detail)
        self.failure_class, self.kind, self.detail = failure_class, kind, detail


def check_finite(name: str, value: float, where: str) -> None:
    """Raise `NotWhatItSays` where a loss or a norm is not finite; 1e308 stands for that in a `Parity`."""
    if not abs(value) < 1e300:
        detail = f"the {name} of {where} is not a finite number"
        raise NotWhatItSays(FailureClass.WRONG_RESULT, Kind.NAN, detail)


def classify_exception(
    error: BaseException, phase: Phase, step: int | None, fullgraph: bool, cache_dir: str | None = None
) -> Failure:
    """Return the `Failure` that `error` stands for.

    Args:
        cache_dir: the trial's compile cache: a file that fails in there is the machine's.
    """
    failure_class, kind, detail = _decide(error, fullgraph, cache_dir)
    if kind is Kind.NO_GRADIENT and reentrant.starved():
        detail += f": {reentrant.SENTENCE}"
    return Failure(
        failure_class=failure_class,
        kind=kind,
        phase=phase,
        type=f"{type(error).__module__}.{type(error).__qualname__}",
        detail=detail,
        traceback="".join(tracebacks.format_exception(error))[-20_000:],
        step=step,
        needed_bytes=_needed_bytes(error) if failure_class is FailureClass.OOM else None,
    )


@contextlib.contextmanager
def users_forward(spec: str) -> Iterator[None]:
    """Name the user's function in what an eager forward raises, unless it is the device's or torch's own doing."""
    try:
        yield
    except (Exception, SystemExit) as error:  # the border to code that is not ours: anything may come
        decided, _, _ = _decide(error, fullgraph=False)
        of_device = isinstance(error, torch.AcceleratorError) or _OF_DEVICE.search(str(error))
        if decided is not FailureClass.OTHER or of_device:
            raise
        with users_code(spec):
            raise


def _decide(
    error: BaseException, fullgraph: bool, cache_dir: str | None = None
) -> tuple[FailureClass, Kind | None, str]:
    if isinstance(error, NotWhatItSays):
        return error.failure_class, error.kind, error.detail
    if isinstance(error, UserCodeError):
        return FailureClass.USER_CODE, None, str(error)
    if isinstance(error, BuildConflict):
        return FailureClass.CONFLICT, None, str(error)
    chain = list(_chain(error))
    for found in chain:  # first: an out-of-memory inside a compiler is one all the same
        if isinstance(found, (torch.OutOfMemoryError, MemoryError)):
            return FailureClass.OOM, None, _out_of_memory(found)
    if (lost := machine_fault(error, cache_dir)) is not None:
        return FailureClass.ENVIRONMENT, None, lost
    for found in chain:
        decided = _by_type(found, fullgraph)
        if decided is not None:
            # There is no phase of its own for it: recomputing happens in the backward.
            where = " (in the backward)" if decided[1] is Kind.CHECKPOINT_MISMATCH else _site(found)
            return (*decided, first_line(found) + where)
    for found in chain:
        for pattern, failure_class, kind in _BY_TEXT:
            if isinstance(found, RuntimeError) and re.search(pattern, str(found)):
                recompiled = failure_class is FailureClass.UNSTABLE
                return failure_class, kind, _recompiled(found) if recompiled else first_line(found)
    for found in chain:
        if _is_compiler_error(found):
            return FailureClass.COMPILE_ERROR, None, first_line(found)
    return FailureClass.OTHER, None, first_line(error)


def _by_type(error: BaseException, fullgraph: bool) -> tuple[FailureClass, Kind | None] | None:
    from torch._dynamo import exc
    from torch.utils.checkpoint import CheckpointError

    if isinstance(error, CheckpointError):
        return FailureClass.WRONG_RESULT, Kind.CHECKPOINT_MISMATCH
    if isinstance(error, exc.FailOnRecompileLimitHit):
        return FailureClass.COMPILE_ERROR, Kind.RECOMPILE_LIMIT
    if isinstance(error, (exc.Unsupported, exc.UserError)):
        if not fullgraph:
            return FailureClass.COMPILE_ERROR, None
        return FailureClass.GRAPH_BREAK, Kind.UNSUPPORTED_BY_MODEL
    return None


def _site(error: BaseException) -> str:
    """Return where in the user's code dynamo stopped, as its message has it; empty where it has not."""
    _, said, stack = str(error).partition("from user code:")
    frames = _FRAME.findall(stack) if said else []
    return f" (at {frames[-1][0]}:{frames[-1][1]})" if frames else ""


def _recompiled(error: BaseException) -> str:
    """Return the guard that failed and whose it is; torch's own first line says neither."""
    guards = _GUARD.findall(str(error))
    if not guards:
        return first_line(error)
    frame = _RECOMPILED.search(str(error))
    return f"recompiling: {guards[0]}"[:400] + (f" (at {frame[1]}:{frame[2]})" if frame else "")


def _is_compiler_error(error: BaseException) -> bool:
    from torch._dynamo import exc

    compilers = ("torch._inductor", "torch._dynamo", "triton")
    return isinstance(error, exc.TorchDynamoException) or type(error).__module__.startswith(compilers)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        # BackendCompilerFailed and InductorError keep what they wrap in an attribute.
        inner = getattr(current, "inner_exception", None)
        current = inner if isinstance(inner, BaseException) else current.__cause__ or current.__context__


def _out_of_memory(error: BaseException) -> str:
    """Return the allocator's figures in one sentence; its own message is a paragraph with advice."""
    tried, allocated = _TRIED.search(str(error)), _ALLOCATED.search(str(error))
    if tried is None:
        return first_line(error)
    beside = "" if allocated is None else f" with {allocated[1]} {allocated[2]} allocated"
    return f"the allocator was asked for {tried[1]} {tried[2]} more{beside}"


def first_line(error: BaseException) -> str:
    """Return the type and the first non-empty line of the message, cut to a sentence."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}"[:400]


def _needed_bytes(error: BaseException) -> int | None:
    """Allocated plus the refused request, as the allocator's message has them: a lower bound of the need."""
    text = next((str(e) for e in _chain(error) if isinstance(e, torch.OutOfMemoryError)), "")
    tried, allocated = _TRIED.search(text), _ALLOCATED.search(text)
    if tried is None or allocated is None:
        return None
    return sum(_at_least(m[1], _UNITS[m[2]]) for m in (tried, allocated))


def _at_least(figure: str, unit: int) -> int:
    # Printed with two decimals, so half of the last one may be rounded up; a lower bound must not be.
    return int(figure) if unit == 1 else int((float(figure) - 0.005) * unit)
