"""With dropout, does what recomputes train the same step? Two layers of the 7B shape, LoRA, per layer.

    python tests/gpu/dropout.py -o OUT/dropout.json --seconds 200
    python tests/gpu/dropout.py -o /tmp/dropout.json --device cpu --tiny --at-once 1

Expected (facts.md): with dropout 0.05 an activation memory budget of 0.4 and less is a fault, 0.9, 0.5
and checkpointing are none; with dropout 0 nothing is. Each case is the product's own twin test where
there is one (`tuner.worker.twin`), else its probe on both strategies, and the product's tolerance.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.gpu import forked

DROPOUT = 0.05
RECOMPUTING: dict[str, dict[str, Any]] = {
    "again": {},
    "amb 0.9": {"activation_memory_budget": 0.9},
    "amb 0.5": {"activation_memory_budget": 0.5},
    "amb 0.4": {"activation_memory_budget": 0.4},
    "amb 0": {"activation_memory_budget": 0.0},
    "checkpointing": {"checkpointing": "every-block"},
    "amb 0.5, graphs": {"activation_memory_budget": 0.5, "mode": "reduce-overhead"},
}
"""What is compared with the same without recomputing."""
WRONG_WITH_DROPOUT = {"amb 0.4", "amb 0"}
WITHOUT_DROPOUT = ("amb 0.9", "amb 0.4", "amb 0", "checkpointing")


SHOWS_IT = {"hidden_size": 16, "intermediate_size": 43, "num_attention_heads": 2, "num_key_value_heads": 2}
"""On a CPU, with one sequence of 16 tokens and a rank of 1: torch 2.13 draws the masks anew at 0.4, and not at 0.5."""


def workload_of(dropout: float, tiny: bool) -> Any:
    """One sequence, as in the product's test: over many the masks would average out, and with them the difference."""
    from tests.gpu import inside
    from tuner.workload import Lengths

    workload = inside.shaped("llama-7b", tiny, layers=2, tokens=2048, dropout=dropout, batch_size=1)
    if not tiny:
        return workload
    config = (workload.config or {}) | SHOWS_IT
    return workload.model_copy(update={"config": config, "lora_rank": 1, "lengths": Lengths.fixed(16)})


def compare(name: str, dropout: float, device: str, tiny: bool) -> dict[str, Any]:
    """Compare one strategy with its twin that recomputes nothing."""
    from tests.gpu import inside
    from tuner.parity import relative_difference, worst_difference

    workload = workload_of(dropout, tiny)
    strategy = inside.LAYER | RECOMPUTING[name]
    twin = inside.LAYER | {"mode": strategy["mode"]}
    began = time.perf_counter()
    by_product = importlib.util.find_spec("tuner.worker.twin") is not None
    test = _twin_test if by_product else _both
    measured, reference, found, costs = test(workload, strategy, twin, device)
    wrong = dropout > 0 and name in WRONG_WITH_DROPOUT
    return {
        "by": "the product's twin test" if by_product else "the product's probe",
        "fault": found,
        "as_expected": (found is not None) == wrong,
        "loss_difference": relative_difference([measured.loss], [reference.loss]),
        "norm_difference": relative_difference([measured.gradient_norm], [reference.gradient_norm]),
        "vector_difference": relative_difference(measured.gradient, reference.gradient),
        "worst_tensor_difference": worst_difference(measured, reference),
        "twin_seconds": time.perf_counter() - began,
        "detector_seconds": costs,
    }


def _twin_test(workload: Any, strategy: Any, twin: Any, device: str) -> tuple[Any, Any, str | None, Any]:
    """Both by the worker's entry for a twin, and what the parent makes of it."""
    from tests.gpu import inside
    from tuner.outcome import classify_twin
    from tuner.protocol import Attempt
    from tuner.space import canonical
    from tuner.worker.__main__ import make_result
    from tuner.worker.measurement import Measurement

    asked = inside.request(workload, device, strategy, twin=canonical({"micro_batch": 1} | twin), role="twin")
    m = Measurement(request=asked, emit=lambda _: None, phase_started=time.time())
    importlib.import_module("tuner.worker.twin").TwinTest(m).run()
    result = make_result(asked, m, None)
    attempt = Attempt(request=asked, exit_code=0, result=result, started_at=0.0, seconds=1.0)
    verdict = classify_twin(attempt)
    found = None if str(verdict.outcome) == "ok" else f"{verdict.outcome}, {verdict.kind}: {verdict.detail}"
    return result.parity, result.twin_parity, found, result.detector_seconds


def _both(workload: Any, strategy: Any, twin: Any, device: str) -> tuple[Any, Any, str | None, Any]:
    """Both one after the other, by the probe."""
    import gc

    import torch

    from tuner.parity import TOLERANCE, fault

    reference = _first_step(workload, twin, device)
    gc.collect()
    torch._dynamo.reset()
    if device == "cuda":
        torch.cuda.empty_cache()
    measured = _first_step(workload, strategy, device)
    return measured, reference, fault(measured, reference, TOLERANCE[workload.precision], layers=2), None


def _first_step(workload: Any, strategy: Any, device: str) -> Any:
    import torch
    import torch._functorch.config

    from tests.gpu import inside
    from tuner.build import Plan, apply
    from tuner.space import canonical
    from tuner.worker.data import Batches, Loss
    from tuner.worker.load import load_model
    from tuner.worker.memory import Memory
    from tuner.worker.parity import ParityProbe
    from tuner.worker.steps import Steps

    on = inside.device(device)
    model = load_model(workload, on, 0)
    budget = float(strategy.get("activation_memory_budget", 1.0))
    whole = canonical({"micro_batch": workload.batch_size} | strategy | {"activation_memory_budget": 1.0})
    applied = apply(model, Plan(strategy=whole, workload=workload))
    # Behind `apply`, which may refuse it under dropout.
    torch._functorch.config.activation_memory_budget = budget
    steps = Steps(
        applied, Batches(workload, model, on, applied.micro_batch, 0), Loss(workload, model, True), Memory(on)
    )
    probe = ParityProbe(model)
    torch.manual_seed(1)
    loss, _ = steps.timed(steps.batches.step(0), before_update=probe.take)
    return probe.finish(loss)


def cases(device: str, tiny: bool) -> dict[str, forked.Case]:
    """Return all cases by name, the most telling first."""

    def case(name: str, dropout: float) -> forked.Case:
        return lambda: compare(name, dropout, device, tiny)

    found = {f"dropout {DROPOUT}: {name}": case(name, DROPOUT) for name in RECOMPUTING}
    found |= {f"dropout 0: {name}": case(name, 0.0) for name in WITHOUT_DROPOUT}
    first = ("amb 0.4", "amb 0.9", "checkpointing")
    return dict(sorted(found.items(), key=lambda item: not item[0].endswith(first)))


def line(name: str, found: dict[str, Any]) -> str:
    """Say it in one line."""
    if "error" in found:
        return f"{name}: {found['error']}"
    return (
        f"{name}: {'as expected' if found['as_expected'] else 'NOT AS EXPECTED'}; loss {found['loss_difference']:.2%}, "
        f"norm {found['norm_difference']:.2%}, vector {found['vector_difference']:.2%}, worst tensor "
        f"{found['worst_tensor_difference']:.2%}; {found['fault'] or 'no fault'} ({found['twin_seconds']:.1f} s)"
    )


def main() -> None:
    """Run the cases."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--each", type=float, default=150, help="seconds that a case may take")
    parser.add_argument("--only", help="a part of the names")
    args, _ = parser.parse_known_args()
    forked.prepare(threads=1 if args.device == "cpu" else 4, compilers=2 if args.device == "cpu" else 4)
    made = {n: c for n, c in cases(args.device, args.tiny).items() if not args.only or args.only in n}
    forked.serve(made)
    forked.load()
    spawn = forked.how_to_start(args.device, __file__, sys.argv[1:])
    found: dict[str, Any] = {}
    seconds = forked.left_of(args.seconds)
    for name, came in forked.run_all(made, at_once=args.at_once, seconds=seconds, each=args.each, spawn=spawn):
        found[name] = came
        print(line(name, came), flush=True)
        forked.keep(args.output, found)


if __name__ == "__main__":
    main()
