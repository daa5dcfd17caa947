"""Cases that run one by one, each in a process of its own that is forked from one with the libraries loaded.

A fresh interpreter takes 16 to 19 s on the machine with the card, a fork less than a second; and a case
that dies, hangs or fills the memory takes no other with it. The parent never touches the card, or its
children could not (`PYTORCH_NVML_BASED_CUDA_CHECK` must be set before torch is imported). Where a fork
cannot use the card all the same, each case gets a fresh interpreter.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Case = Callable[[], Any]
"""Returns what JSON can hold."""

BEFORE_TORCH = {
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:2:16:8",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "GOMP_SPINCOUNT": "0",
    "TORCHINDUCTOR_AUTOTUNE_IN_SUBPROC": "0",
}
CACHE_VARIABLE = "GPU_CASES_CACHE"
"""A folder for the compile cache of all cases; on a CPU a cold compile takes a minute."""
_PR_SET_PDEATHSIG = 1
_BEGAN = time.monotonic()
STUCK_SECONDS = 100.0
"""After so long a case says on stderr where it is."""


def prepare(threads: int, compilers: int) -> None:
    """Set what has to be there before torch is imported."""
    counts = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "TORCHINDUCTOR_COMPILE_THREADS": compilers}
    for name, value in (BEFORE_TORCH | {name: str(count) for name, count in counts.items()}).items():
        os.environ.setdefault(name, value)


def left_of(seconds: float) -> float:
    """Return what is left of `seconds` that began with this process."""
    return seconds - (time.monotonic() - _BEGAN)


@dataclass
class _Child:
    name: str
    pid: int
    pipe: int
    began: float
    said: bytes = b""


def run_all(
    cases: Mapping[str, Case], *, at_once: int, seconds: float, each: float, spawn: list[str] | None = None
) -> Iterator[tuple[str, Any]]:
    """Run the cases, `at_once` at a time; yield the name and what came out of each as it ends.

    Args:
        seconds: for all of them; what has not begun by then is not begun.
        each: a case may take so long.
        spawn: a command that runs one case (`serve`), in place of forks.
    """
    ends, left, running = time.monotonic() + seconds, list(cases), list[_Child]()
    while left or running:
        now = time.monotonic()
        while left and len(running) < at_once and now < ends:
            name = left.pop(0)
            running.append(_start(name, cases[name]) if spawn is None else _spawn(name, spawn))
        if not running:
            break
        _read(running, 0.2)
        now = time.monotonic()
        for child in [c for c in running if c.pipe < 0 or now - c.began > each or now > ends]:
            running.remove(child)
            yield child.name, _end(child)
    for name in left:
        yield name, {"error": "not begun, no time left"}


def how_to_start(device: str, script: str, arguments: list[str]) -> list[str] | None:
    """Return None where forked children can use the device, else the command that runs one case."""
    if device == "cpu":
        return None
    _, found = next(run_all({"fork": can_use_card}, at_once=1, seconds=90, each=90))
    print(f"fork: {json.dumps(found)[:300]}", flush=True)
    return [sys.executable, script, *arguments] if "error" in found else None


def serve(cases: Mapping[str, Case]) -> None:
    """Run the case that `run_all` asked of this interpreter, if it did, and leave."""
    if len(sys.argv) > 3 and sys.argv[-3] == "--case":
        name = sys.argv[-2]
        _work(name, cases[name], int(sys.argv[-1]))


def _spawn(name: str, command: list[str]) -> _Child:
    read_end, write_end = os.pipe()
    words = [*command, "--case", name, str(write_end)]
    process = subprocess.Popen(words, pass_fds=(write_end,), start_new_session=True)
    os.close(write_end)
    return _Child(name, process.pid, read_end, time.monotonic())


def _start(name: str, case: Case) -> _Child:
    sys.stdout.flush()
    sys.stderr.flush()
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.close(read_end)
        _work(name, case, write_end)
    os.close(write_end)
    return _Child(name, pid, read_end, time.monotonic())


def _work(name: str, case: Case, pipe: int) -> None:
    """Run a case in the child and leave. Dies with its parent; unless told otherwise every compile is a cold one."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        folder = os.environ.get(CACHE_VARIABLE) or tempfile.mkdtemp(prefix="case-")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(folder, "inductor")
        os.environ["TRITON_CACHE_DIR"] = os.path.join(folder, "triton")
        faulthandler.dump_traceback_later(STUCK_SECONDS, exit=False)
        began = time.monotonic()
        found = case()
        found = found | {"seconds": round(time.monotonic() - began, 2)} if isinstance(found, dict) else found
    except BaseException as error:  # the child's entry: whatever it is, the parent is told
        found = {"error": f"{type(error).__name__}: {error}"[:2000], "traceback": traceback.format_exc()[-3000:]}
    with os.fdopen(pipe, "wb") as stream:
        stream.write(json.dumps(found, default=str).encode())
    sys.stdout.flush()
    os._exit(0)


def _read(running: list[_Child], seconds: float) -> None:
    with selectors.DefaultSelector() as selector:
        for child in running:
            selector.register(child.pipe, selectors.EVENT_READ, child)
        for key, _ in selector.select(seconds):
            child: _Child = key.data
            if data := os.read(child.pipe, 65536):
                child.said += data
            else:
                os.close(child.pipe)
                child.pipe = -1


def _end(child: _Child) -> Any:
    late = child.pipe >= 0
    if late:
        os.close(child.pipe)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)  # a case's compilers too
    _, status = os.waitpid(child.pid, 0)
    if late:
        return {"error": f"ended after {time.monotonic() - child.began:.0f} s, it took too long"}
    try:
        return json.loads(child.said)
    except ValueError:
        return {"error": f"ended with status {status} and said nothing"}


def keep(path: Path, found: Mapping[str, Any]) -> None:
    """Write what is known so far, whole or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(found, indent=1, default=str))
    temporary.replace(path)


def can_use_card() -> Any:
    """A first case: may a forked child use the card?"""
    import torch

    return {"sum": float(torch.ones(4, device="cuda").sum()), "device": torch.cuda.get_device_name(0)}


def load() -> None:
    """Import what every case needs and what leaves the card alone; peft is not among it, as it imports bitsandbytes."""
    import torch
    import torch._dynamo
    import transformers.models.llama.modeling_llama
    from transformers import AutoModelForCausalLM

    import tuner.worker.__main__
    import tuner.worker.measure

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    _ = (torch._dynamo, transformers.models.llama.modeling_llama, AutoModelForCausalLM, tuner.worker.__main__)
