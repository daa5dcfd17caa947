"""The table from exception to class and kind, with what torch really raises wherever a CPU can make it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.models import small
from tests.models.small import WIDTH, Block, Branching
from tuner.build import BuildConflict
from tuner.kinds import FailureClass, Kind, Phase
from tuner.protocol import Failure
from tuner.worker.failure import NotWhatItSays, classify_exception
from tuner.worker.user_code import UserCodeError

X = torch.ones(2, WIDTH)
NOTHING: dict[str, int] = {}
OUT_OF_MEMORY = (
    "CUDA out of memory. Tried to allocate 172.00 MiB. GPU 0 has a total capacity of 139.81 GiB of which 117.98 GiB is "
    "free. 21.69 GiB allowed; Of the allocated memory 20.87 GiB is allocated by PyTorch, and 301.14 MiB is reserved by "
    "PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  "
    "(https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf)"
)
WITH_GRAPHS = OUT_OF_MEMORY.replace(
    "20.87 GiB is allocated by PyTorch,",
    "20.87 GiB is allocated by PyTorch, with 12.50 MiB allocated in private pools (e.g., CUDA Graphs),",
)


def failure_of(raises: Callable[[], Any], fullgraph: bool = False) -> Failure:
    with pytest.raises(Exception) as caught:
        raises()
    return classify_exception(caught.value, Phase.FIRST_STEP, 1, fullgraph)


def raising(error: Exception) -> Callable[[], None]:
    def raises() -> None:
        raise error

    return raises


def compiled(module: nn.Module, backend: Any = "aot_eager", **options: Any) -> nn.Module:
    module.compile(backend=backend, **options)
    return module


def failing_backend(error: Exception) -> Callable[..., Any]:
    def backend(*_: Any) -> None:
        raise error

    return backend


def classes(failure: Failure) -> tuple[FailureClass, Kind | None]:
    return failure.failure_class, failure.kind


# Memory


@pytest.mark.parametrize("text", [OUT_OF_MEMORY, WITH_GRAPHS])
def test_out_of_memory_says_what_was_needed(text: str) -> None:
    failure = failure_of(raising(torch.OutOfMemoryError(text)))
    assert classes(failure) == (FailureClass.OOM, None)
    exact = 172 * 2**20 + 20.87 * 2**30
    # A lower bound: figures are printed rounded, so half of the last digit is taken off.
    assert failure.needed_bytes is not None and exact - 2**23 < failure.needed_bytes <= exact - 2**22
    assert "172.00 MiB" in failure.detail and "20.87 GiB" in failure.detail and "\n" not in failure.detail
    assert failure.type == "torch.OutOfMemoryError"


def test_out_of_memory_inside_a_compiler() -> None:
    failure = failure_of(lambda: compiled(Block(), failing_backend(torch.OutOfMemoryError(OUT_OF_MEMORY)))(X))
    assert failure.type == "torch._dynamo.exc.BackendCompilerFailed"
    assert classes(failure) == (FailureClass.OOM, None)
    assert failure.needed_bytes is not None


def test_out_of_memory_inside_a_compiled_region() -> None:
    @torch.library.custom_op("tuner_tests::refused", mutates_args=())
    def refused(x: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError(OUT_OF_MEMORY)

    refused.register_fake(torch.empty_like)

    class Refused(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = refused(x * 2)
            return out

    assert failure_of(lambda: compiled(Refused())(X)).failure_class is FailureClass.OOM


def test_the_hosts_allocator() -> None:
    failure = failure_of(lambda: torch.empty(2**60))
    assert classes(failure) == (FailureClass.OOM, None)
    assert failure.needed_bytes is None
    assert failure_of(raising(MemoryError())).failure_class is FailureClass.OOM


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call",
    ],
)
def test_memory_outside_the_allocator_is_suspected(text: str) -> None:
    assert classes(failure_of(raising(RuntimeError(text)))) == (FailureClass.OOM, Kind.SUSPECTED)


# What dynamo raises


def test_a_graph_break_under_fullgraph_has_its_line() -> None:
    failure = failure_of(lambda: compiled(Branching(), fullgraph=True)(X), fullgraph=True)
    assert failure.type == "torch._dynamo.exc.Unsupported"
    assert classes(failure) == (FailureClass.GRAPH_BREAK, Kind.UNSUPPORTED_BY_MODEL)
    lines = Path(small.__file__).read_text().splitlines()
    line = next(n for n, text in enumerate(lines, 1) if "the break's line" in text)
    assert failure.detail == f"Unsupported: Data-dependent branching (at {small.__file__}:{line})"


def test_the_recompile_limit_under_fullgraph() -> None:
    module = compiled(Block(), fullgraph=True, dynamic=False)
    failure = failure_of(lambda: [module(torch.ones(rows, WIDTH)) for rows in range(2, 12)], fullgraph=True)
    assert failure.type == "torch._dynamo.exc.FailOnRecompileLimitHit"
    assert classes(failure) == (FailureClass.COMPILE_ERROR, Kind.RECOMPILE_LIMIT)


def test_a_recompile_in_steady() -> None:
    module = compiled(Block(), dynamic=False)
    module(X)

    def another_size() -> None:
        with torch.compiler.set_stance("fail_on_recompile"):
            module(torch.ones(5, WIDTH))

    failure = failure_of(another_size)
    assert classes(failure) == (FailureClass.UNSTABLE, None)
    assert failure.detail.startswith("recompiling: 0/0: tensor 'x' size mismatch at index 0. expected 2, actual 5")
    assert f"(at {small.__file__}:" in failure.detail


def test_a_compiler_that_fails() -> None:
    failure = failure_of(lambda: compiled(Block(), failing_backend(AssertionError("lowering")))(X))
    assert classes(failure) == (FailureClass.COMPILE_ERROR, None)


@pytest.mark.parametrize(
    "error", [PermissionError(13, "Permission denied", "/cache"), OSError(28, "No space left on device", "/cache/x")]
)
def test_a_compiler_that_lost_its_folder_is_the_machines(error: OSError) -> None:
    failure = failure_of(lambda: compiled(Block(), failing_backend(error))(X))
    assert classes(failure) == (FailureClass.ENVIRONMENT, None) and "/cache" in failure.detail


# Wrong results


def test_a_recomputation_that_differs() -> None:
    calls: list[int] = []

    def changes(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x.exp().exp() if len(calls) == 1 else x.exp()

    failure = failure_of(lambda: checkpoint(changes, X.clone().requires_grad_(), use_reentrant=False).sum().backward())
    assert failure.type == "torch.utils.checkpoint.CheckpointError"
    assert classes(failure) == (FailureClass.WRONG_RESULT, Kind.CHECKPOINT_MISMATCH)


def test_a_loss_that_hangs_on_nothing() -> None:
    failure = failure_of(lambda: X.sum().backward())
    assert classes(failure) == (FailureClass.WRONG_RESULT, Kind.NO_GRADIENT)


# CUDA graphs


@pytest.mark.parametrize("is_grad_output", [True, False])
def test_an_output_that_the_next_replay_overwrote(is_grad_output: bool) -> None:
    from torch._inductor.cudagraph_trees import CUDAGraphTreeManager

    text = CUDAGraphTreeManager.format_dealloc_msg("a line", is_grad_output=is_grad_output)
    assert classes(failure_of(raising(RuntimeError(text)))) == (FailureClass.CONFLICT, None)


def test_checkpointing_around_a_graph() -> None:
    text = "TODO: graph recording observed an input tensor deallocate during graph  recording that did not occur"
    assert failure_of(raising(RuntimeError(text))).failure_class is FailureClass.CONFLICT


# Ours, the user's, anyone's


def test_what_measuring_itself_found() -> None:
    error = NotWhatItSays(FailureClass.COMPILE_NOT_APPLIED, Kind.RECOMPILE_LIMIT, "why")
    failure = failure_of(raising(error))
    assert (*classes(failure), failure.detail) == (FailureClass.COMPILE_NOT_APPLIED, Kind.RECOMPILE_LIMIT, "why")


def test_the_users_own_code_and_a_conflict() -> None:
    assert classes(failure_of(raising(UserCodeError("f raised")))) == (FailureClass.USER_CODE, None)
    failure = failure_of(raising(BuildConflict("no layers")))
    assert (*classes(failure), failure.detail) == (FailureClass.CONFLICT, None, "no layers")


def test_anything_else() -> None:
    def deep() -> None:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ZeroDivisionError("first line\nsecond") from error

    failure = failure_of(deep)
    assert classes(failure) == (FailureClass.OTHER, None)
    assert failure.detail == "ZeroDivisionError: first line"
    assert "KeyError" in failure.traceback and "in deep" in failure.traceback
    assert (failure.phase, failure.step, failure.needed_bytes) == (Phase.FIRST_STEP, 1, None)


def test_a_mistake_in_a_compiled_region_is_no_compiler_error() -> None:
    class Mistaken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = x + NOTHING["missing"]
            return out

    assert failure_of(lambda: compiled(Mistaken())(X)).failure_class in {FailureClass.OTHER, FailureClass.COMPILE_ERROR}


def test_a_chain_that_bites_its_tail_ends() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert classify_exception(first, Phase.STEADY, None, False).failure_class is FailureClass.OTHER
