"""D18: children outlive their trial; memory of others is not charged to the next strategy. The process part."""

from __future__ import annotations

import os
from pathlib import Path

from tests.tuner.searching import Bench, End, bench
from tests.tuner.trials import ROOT, fake, request
from tuner import processes
from tuner.errors import ExitCode
from tuner.launcher import Launcher
from tuner.outcome import Outcome, classify
from tuner.protocol import TrialRequest
from tuner.trial_dir import TrialDir

__all__ = ["bench"]
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


def test_five_trials_that_run_out_of_memory_leave_no_child_behind(tmp_path: Path) -> None:
    launcher, before = Launcher(ENVIRONMENT), processes.descendants(os.getpid())
    for number in range(5):
        folder = TrialDir.create(tmp_path, "study", str(number))
        attempt = launcher.start(request(), folder, fake("grandchild", folder.path, "fail")).wait(15)
        assert attempt is not None
        children = [int(pid) for pid in (folder.path / "children").read_text().split()]
        assert len(children) == 2 and all(processes.read_stat(pid) is None for pid in children)
        assert len(attempt.strays) == 2, "and they are named"
        assert classify(attempt).outcome is Outcome.OOM, "the script's own, not the children's"
        assert processes.descendants(os.getpid()) == before


def test_a_visitor_half_way_costs_no_strategy_anything(bench: Bench) -> None:
    launches: list[str] = []

    def answer(request: TrialRequest, _: bool) -> End | None:
        launches.append(request.trial_uuid)
        return End(foreign=True) if len(launches) == 4 else None

    found = bench.run(answer, trials=6)
    records = found.heard.records
    assert records[3].outcome is Outcome.DEVICE_NOT_CLEAN and "4711 train.py" in records[3].detail
    assert records[4].fingerprint == records[3].fingerprint and records[4].outcome is Outcome.OK
    assert found.end.exit_code is ExitCode.DONE
    assert len({r.fingerprint for r in records if r.role == "search" and r.outcome is Outcome.OK}) == 6
