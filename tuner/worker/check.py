"""The child of the machine check: ``python -m tuner.worker.check OUT.json DEVICE``.

A torch that is broken may end the process at any line, so the report is written after every stage.
"""

from __future__ import annotations

import importlib
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tuner.machine import CheckItem, ChildReport
from tuner.worker.check_cause import cause, describe


class Child:
    """The stages, in order, and the report that grows with them."""

    def __init__(self, out: Path, device: str) -> None:
        self.out, self.device = out, device
        self.report = ChildReport(stage="torch")

    def save(self, **changes: Any) -> None:
        """Change the report, then write it whole or not at all."""
        self.report = self.report.model_copy(update=changes)
        temporary = self.out.with_suffix(".part")
        temporary.write_text(self.report.model_dump_json())
        os.replace(temporary, self.out)

    def note(self, name: str, ok: bool, value: str, advice: str = "", **facts: Any) -> None:
        """Add one item, and what became known with it."""
        item = CheckItem(name=name, ok=ok, value=value, advice=advice)
        self.save(items=(*self.report.items, item), facts=self.report.facts.model_copy(update=facts))

    def run(self) -> None:
        """Go through the stages; the first that makes the next ones senseless ends it."""
        self.save()
        if not self.torch():
            return
        self.save(stage="device")
        if not self.card():
            return
        self.save(stage="dynamo")
        if not self.dynamo():
            return
        self.save(stage="triton")
        self.triton()
        self.save(stage="compile")
        self.tiny_compile()
        # Last: a native library that ends the process then hides nothing else.
        self.save(stage="bitsandbytes")
        self.bitsandbytes()
        self.save(stage="done")

    def torch(self) -> bool:
        """Import torch."""
        try:
            torch = importlib.import_module("torch")
        except (ImportError, OSError) as error:
            self.note("torch", False, describe(error), "install torch 2.11 or newer")
            return False
        self.note("torch", True, torch.__version__, cuda_version=torch.version.cuda)
        return True

    def card(self) -> bool:
        """Find the device and ask it what it has."""
        import torch

        if self.device == "cpu":
            self.note("device", True, f"cpu, {torch.get_num_threads()} threads", device_name=processor())
            return True
        try:
            index = torch.device(self.device).index or 0
            _, total = torch.cuda.mem_get_info(index)
            card = torch.cuda.get_device_properties(index)
        except (RuntimeError, AssertionError) as error:
            self.note(
                "device", False, describe(error), f"check that nvidia-smi shows {self.device}, or use --device cpu"
            )
            return False
        self.note(
            "device",
            True,
            card.name,
            device_name=card.name,
            cuda_total_bytes=total,
            multiprocessors=card.multi_processor_count,
            capability=f"{card.major}.{card.minor}",
        )
        return True

    def dynamo(self) -> bool:
        """Import dynamo, which makes its cache folder then. Every optimizer of torch imports it too.

        It can be tried once only: a second import of it fails with another, misleading error.
        """
        error = attempt(lambda _: importlib.import_module("torch._dynamo"), self.device)
        if error is not None:
            self.note("dynamo", False, cause(error), "nothing can run here, not even without compiling")
        return error is None

    def triton(self) -> None:
        """Triton writes the kernels of a card; a CPU needs none."""
        try:
            version = importlib.import_module("triton").__version__
        except (ImportError, OSError) as error:
            if self.device == "cpu":
                self.note("triton", True, "not needed on a cpu")
            else:
                self.note("triton", False, describe(error), "install the triton that belongs to this torch")
            return
        self.note("triton", True, version, triton=version)

    def bitsandbytes(self) -> None:
        """Let an 8-bit optimizer take one step on the device."""
        error = attempt(eight_bit_step, self.device)
        if error is not None:
            advice = "the 8-bit optimizers and QLoRA cannot be used; install bitsandbytes 0.50 or newer"
            self.note("bitsandbytes", False, cause(error), advice)
            return
        self.note("bitsandbytes", True, "an 8-bit step works", bitsandbytes_usable=True)

    def tiny_compile(self) -> None:
        """Compile a small function, and run it forward and backward."""
        started = time.monotonic()
        error = attempt(compile_something, self.device)
        if error is not None:
            self.note("compile", False, cause(error), "nothing can be compiled here; --fix mode=off still works")
            return
        seconds = time.monotonic() - started
        self.note("compile", True, f"forward and backward in {seconds:.1f} s")
        self.save(compile_seconds=seconds)


def attempt(action: Callable[[str], object], device: str) -> Exception | None:
    """Return what `action` raised. A native library may raise anything, and to name it is the point."""
    try:
        action(device)
    except Exception as error:
        return error
    return None


def compile_something(device: str) -> None:
    """Compile a function that no cache knows: a warm cache would hide a compiler that is gone."""
    import torch

    factor = 1.0 + random.SystemRandom().random()

    def function(x: torch.Tensor) -> torch.Tensor:
        return (torch.sin(x) * factor).sum()

    x = torch.randn(64, 64, device=device, requires_grad=True)
    loss = torch.compile(function, fullgraph=True)(x)
    loss.backward()
    expected = torch.cos(x) * factor
    if x.grad is None or not torch.allclose(x.grad, expected, atol=1e-4):
        raise RuntimeError("the compiled function gave a wrong gradient")


def eight_bit_step(device: str) -> None:
    """Take one step with AdamW8bit on a tensor that is large enough for 8-bit state."""
    import torch
    from bitsandbytes.optim.adamw import AdamW8bit

    weight = torch.nn.Parameter(torch.ones(128, 128, device=device))
    optimizer = AdamW8bit([weight], lr=0.1)
    weight.sum().backward()
    optimizer.step()
    if bool((weight == 1).all()):
        raise RuntimeError("the step of AdamW8bit changed nothing")


def processor() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "cpu"
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "cpu")


def main() -> None:
    """Check, and always end with 0: the report says what is wrong."""
    Child(Path(sys.argv[1]), sys.argv[2]).run()


if __name__ == "__main__":
    main()
