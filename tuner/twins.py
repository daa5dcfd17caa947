"""Which twin test a strategy needs before it is launched or proved, and what the tests have said.

A twin test compares loss and gradient of the first step of two strategies on a slice of the model:
with dropout whatever recomputes against the same without recomputing; before a proof that no eager
reference can vouch for, the strategy against an eager one.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from strategies.knob import GRAPH_MODES, Severity, Stage, Strategy, Target, Value
from strategies.recipes import REFERENCES, complete
from strategies.registry import KNOBS
from tuner.kinds import FailureClass, Kind
from tuner.outcome import Outcome
from tuner.proposals import Proposal
from tuner.protocol import TrialRequest
from tuner.record import StudyRecord, TrialRecord, decides
from tuner.requests import Requests
from tuner.space import Space, canonical, conflict_of, fingerprint
from tuner.timing import mode_class
from tuner.workload import Workload

LAYERS = 2
"""Decoder layers of a slice: enough for a layer whose input another one has changed."""
AT_MOST = 2
"""Launches of one test in one search: what crashed, or met others on the card, is tried once more."""
UNKNOWN_SECONDS = {"eager": 40.0, "compiled": 90.0, "graphs": 90.0}
"""Of a test before any of the kind was seen, by `mode_class`: one start, two builds of few layers."""
RECOMPUTED, SLICED = "twin test: without recomputing", "slice: eager"
"""Sources of the two kinds of tests."""
_MATTERS = ("mode", "scope", "dynamic", *(k.name for k in KNOBS if any(k.recomputes(v) for v in k.values)))
"""Knobs that decide what is recomputed, and how random masks come about there: what one graph is (scope), whether
its sizes are symbolic, whether graphs replay the generator's state, and what is recomputed. Micro-batch, optimizer,
warm-up batch and allocator draw no mask, and fullgraph gives the same graph or none."""
_EAGER = canonical(complete(REFERENCES[0].strategy))


class Twins:
    """The twin tests of one study.

    Args:
        for_key: returns the records of a key: tests are kept under the key of their slice, so that
            one that was made for another budget or study counts here.
    """

    def __init__(
        self, study: StudyRecord, target: Target, requests: Requests, for_key: Callable[[str], list[TrialRecord]]
    ) -> None:
        self.study, self.target, self.requests, self._for_key = study, target, requests, for_key
        self._records: dict[str, list[TrialRecord]] = {}
        self._seconds: dict[str, list[float]] = {}
        self._launched: Counter[tuple[str, str]] = Counter()

    def recomputed(self, strategy: Strategy) -> Proposal | None:
        """Return the test of `strategy` against the same without recomputing; None: it needs none."""
        if self.study.workload.dropout == 0:
            return None
        twin = canonical({**strategy, **{k.name: k.baseline for k in KNOBS if k.recomputes(strategy[k.name])}})
        if twin == canonical(strategy):
            return None
        # One sequence: over many the masks of each would average out, and with them the difference.
        return self._test(_one_of_many(strategy), _one_of_many(twin), self._slice(batch_size=1), RECOMPUTED)

    def test_of(self, strategy: Strategy) -> tuple[str, ...]:
        """Return what names the test of what `strategy` recomputes: empty where it needs none."""
        test = self.recomputed(strategy)
        return () if test is None or test.twin is None else (fingerprint(test.strategy), fingerprint(test.twin))

    def against_eager(self, strategy: Strategy) -> Proposal | None:
        """Return the test of `strategy` against the eager baseline, without dropout; None: there is no slice."""
        whole = self.study.workload
        sliced = self._slice(dropout=0.0)
        if sliced.depth == whole.depth or canonical(strategy) == _EAGER:
            return None
        process = {k.name: strategy[k.name] for k in KNOBS if k.stage is Stage.PROCESS}  # one process, one environment
        return self._test(canonical(strategy), canonical({**_EAGER, **process}), sliced, SLICED)

    def test_as(self, request: TrialRequest) -> Proposal | None:
        """Return the test that a request is of; None: of none that this study makes."""
        tests = (self.recomputed(request.strategy), self.against_eager(request.strategy))
        asked = (request.strategy, request.twin, request.workload)
        return next((t for t in tests if t is not None and (t.strategy, t.twin, t.workload) == asked), None)

    def checked_on_slice(self, strategy: Strategy) -> bool:
        """Has `strategy` trained the same step as the eager baseline on the slice?

        That is without dropout: what it recomputes under dropout has to have passed its own test.
        """
        test, recomputed = self.against_eager(strategy), self.recomputed(strategy)
        return self._passed(test) and (recomputed is None or self._passed(recomputed))

    def untested(self, strategy: Strategy) -> str | None:
        """Return the sentence that says that the test of what `strategy` recomputes said nothing; None: it did."""
        test = self.recomputed(strategy)
        found = None if test is None else self.finding(test)
        if found is None or found.outcome in (Outcome.OK, Outcome.WRONG_RESULT):
            return None
        return f"under dropout what it recomputes was compared with nothing: its twin test ended with {found.outcome}"

    def with_doubt(self, record: TrialRecord) -> TrialRecord:
        """Return a record that is ok with what is not known of it beside it."""
        doubt = self.untested(record.strategy)
        if doubt is None or record.outcome is not Outcome.OK:
            return record
        return record.model_copy(update={"detail": "; ".join(filter(None, (record.detail, doubt)))})

    def alike(self, strategy: Strategy, space: Space) -> set[str]:
        """Return the fingerprints of all strategies of `space` that need the same test as `strategy`."""
        test = self.test_of(strategy)
        if not test:
            return set()
        return {print_ for print_, at in space.index.items() if self.test_of(space.strategies[at]) == test}

    def _passed(self, test: Proposal | None) -> bool:
        found = None if test is None else self.finding(test)
        return found is not None and found.outcome is Outcome.OK

    def _test(self, strategy: dict[str, Value], twin: dict[str, Value], sliced: Workload, source: str) -> Proposal:
        return Proposal(strategy, source, role="twin", workload=sliced, twin=twin)

    def _slice(self, **changes: object) -> Workload:
        """The workload with few layers; at its own depth where that cannot be asked for."""
        whole = self.study.workload
        sliced = whole.with_depth(min(LAYERS, whole.layers or LAYERS)) or whole
        return sliced.model_copy(update=changes)

    def key(self, test: Proposal) -> str:
        """Return the key that the record of a test is kept under."""
        return self.study.environment.key(test.workload or self.study.workload)

    def finding(self, test: Proposal) -> TrialRecord | None:
        """Return the record that says what came of a test under this study's limits; None: it is open."""
        cap_bytes = self.requests.cap_bytes(test.strategy)
        for record in reversed(self._known(self.key(test))):
            if record.fingerprint != fingerprint(test.strategy) or record.twin != test.twin:
                continue
            if record.outcome in (Outcome.OK, Outcome.WRONG_RESULT):
                return record
            limit, deadlines = self.requests.limits.limit_bytes, self.requests.deadlines
            if decides(record, limit_bytes=limit, cap_bytes=cap_bytes, deadlines=deadlines):
                return record
            # Whatever it was: an out-of-memory under a need that the cap allows would else be tried for ever.
            if self._launches(test) >= (1 if _of_user(record) else AT_MOST):
                return record
        return None

    def _launches(self, test: Proposal) -> int:
        return self._launched[self.key(test), fingerprint(test.strategy)]

    def _known(self, key: str) -> list[TrialRecord]:
        if key not in self._records:
            self._records[key] = []
            for record in self._for_key(key):
                self._keep(record)
        return self._records[key]

    def has(self, key: str, uuid: str) -> bool:
        """Is there a record of this test already?"""
        return any(record.uuid == uuid for record in self._known(key))

    def take(self, record: TrialRecord) -> None:
        """Take the record of a test of an earlier search."""
        self._known(record.key)
        self._keep(record)

    def add(self, record: TrialRecord) -> None:
        """Take the record of a test that was launched now."""
        self.take(record)
        self._launched[record.key, record.fingerprint] += 1

    def _keep(self, record: TrialRecord) -> None:
        if record.role == "twin" and record not in self._records[record.key]:
            self._records[record.key].append(record)
            self._seconds.setdefault(mode_class(record.strategy), []).append(record.seconds)

    def refusal(self, strategy: Strategy, finding: TrialRecord) -> tuple[Outcome, Kind | None, str] | None:
        """Return outcome, kind and sentence of a strategy that is not launched for what its test said; None: it is."""
        if finding.outcome is Outcome.WRONG_RESULT:
            detail = f"found on {_depth(finding)} ({finding.source}): {finding.detail}"
            return finding.outcome, finding.kind, detail
        if finding.outcome is Outcome.OK or finding.source != RECOMPUTED:
            return None
        # The test said nothing: what is known to be wrong without one is not launched.
        conflict = conflict_of(strategy, replace(self.target, untested_dropout=True))
        if conflict is None or conflict.severity is not Severity.IMPOSSIBLE:
            return None
        return Outcome.CONFLICT, None, f"{conflict.reason}: it ended with {finding.outcome} ({finding.detail})"

    def seconds(self, strategy: Strategy) -> float:
        """Return the seconds that a test of `strategy` will likely take; 0 where it needs none, or none any more."""
        test = self.recomputed(strategy)
        return 0.0 if test is None else self.open_seconds(test)

    def open_seconds(self, test: Proposal) -> float:
        """Return the seconds that a test will likely take; 0 where it is decided."""
        if self.finding(test) is not None:
            return 0.0
        kind = mode_class(test.strategy)
        seen = self._seconds.get(kind)
        return statistics.median(seen[-7:]) * 1.1 if seen else UNKNOWN_SECONDS[kind]


def _one_of_many(strategy: Strategy) -> dict[str, Value]:
    """Return the strategy that is tested for all that share what matters to recomputing."""
    shared: dict[str, Value] = {name: strategy[name] for name in _MATTERS}
    if (kind := mode_class(strategy)) != "eager":
        # Autotuning chooses kernels of matrix products, which draw no masks.
        shared["mode"] = "reduce-overhead" if kind == "graphs" else "default"
    assert kind != "graphs" or shared["mode"] in GRAPH_MODES
    return canonical(complete(shared))


def _of_user(record: TrialRecord) -> bool:
    """Did the user's own function raise? On the slice it would do so again."""
    failure = record.result.failure if record.result else None
    return failure is not None and failure.failure_class is FailureClass.USER_CODE


def _depth(finding: TrialRecord) -> str:
    layers = finding.result.layers if finding.result else None
    return "a slice" if layers is None else f"{layers} layer{'s' if layers > 1 else ''}"
