"""The eager runs of a study: the reference, and how much the others differ from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from strategies.knob import COMPILE_OFF
from strategies.recipes import REFERENCES, complete
from tuner.measured import Parity
from tuner.outcome import Outcome
from tuner.parity import TOLERANCE, Spread, Tolerance, fault, spread
from tuner.record import TrialRecord
from tuner.space import fingerprint
from tuner.workload import Precision, Workload


def reference_record(standing: Mapping[str, TrialRecord], seed: int) -> TrialRecord | None:
    """Return the baseline's record, else that of eager with checkpointing; None: neither ran ok with this seed.

    Args:
        standing: what stands, by fingerprint.
        seed: of model and data.
    """
    for recipe in REFERENCES:
        record = standing.get(fingerprint(complete(recipe.strategy)))
        if record is not None and record.outcome is Outcome.OK and record.seed == seed and record.result is not None:
            return record
    return None


def eager_spread(standing: Mapping[str, TrialRecord], seed: int, workload: Workload) -> Spread | None:
    """Return how much eager runs differ from the reference; None: there are not two on the same data.

    They train the same step, at other micro-batches or with checkpointing: what they differ by is rounding.
    One that differs by more than the table allows is no measure of that, whatever it was judged by then.
    """
    reference = reference_record(standing, seed)
    result = None if reference is None else reference.result
    if reference is None or result is None or (parity := result.parity) is None:
        return None
    others = [record for record in standing.values() if record.uuid != reference.uuid]
    table, layers, routed = TOLERANCE[workload.precision], result.layers, workload.is_moe
    alike = _parities(others, reference)
    return spread(parity, [p for p in alike if fault(p, parity, table, layers=layers, routed=routed) is None], routed)


def _parities(records: Iterable[TrialRecord], reference: TrialRecord) -> list[Parity]:
    alike = [
        r
        for r in records
        if r.outcome is Outcome.OK
        and r.seed == reference.seed
        and r.strategy["mode"] == COMPILE_OFF
        and r.strategy["optimizer"] == reference.strategy["optimizer"]
    ]
    return [r.result.parity for r in alike if r.result is not None and r.result.parity is not None]


def tolerances(found: Spread | None, workload: Workload) -> dict[Precision, Tolerance]:
    """Return what may differ from the reference, by precision: the table, raised where eager runs differ by more."""
    precision = workload.precision
    return TOLERANCE | {precision: TOLERANCE[precision].widened(found)}


def spread_words(standing: Mapping[str, TrialRecord], seed: int, workload: Workload) -> str | None:
    """Return what eager runs differ by, and what is allowed, in one line; None: it is not known."""
    found, reference = eager_spread(standing, seed, workload), reference_record(standing, seed)
    if found is None or reference is None or reference.result is None:
        return None
    allowed = tolerances(found, workload)[workload.precision].of_gradient(reference.result.layers)
    where = "the gradient" if workload.is_moe else "one tensor's gradient"
    return (
        f"eager runs differ from each other by up to {_percent(found.gradient)} in {where} here; "
        f"{_percent(allowed)} is allowed"
    )


def _percent(share: float) -> str:
    return f"{share * 100:.3g} %"
