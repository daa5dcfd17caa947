"""``tuner dashboard``: a process that serves until Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import optuna
import pytest

from tests.tuner.commands.made import call, fill
from tests.tuner.made import record_of
from tuner.commands import dashboard
from tuner.errors import MachineError, WrongInput
from tuner.storage import open_storage

ROOT = Path(__file__).parents[3]
PROGRAM = """
import argparse, sys
from tuner.commands import dashboard
parser = argparse.ArgumentParser()
dashboard.add_arguments(parser)
sys.exit(dashboard.run(parser.parse_args(["--port", "0"])))
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fill(tmp_path, [record_of(number=0)])


def test_it_serves_the_study_until_ctrl_c(tmp_path: Path) -> None:
    storage = open_storage(None, tmp_path)
    optuna.create_study(study_name="s", storage=storage.optuna, direction="maximize")
    storage.close()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            found = re.search(r"study s: (http://127\.0\.0\.1:\d+)/dashboard/studies/1 ", line)
            assert found, line
            with urllib.request.urlopen(f"{found[1]}/api/studies", timeout=20) as answer:
                assert [s["study_name"] for s in json.load(answer)["study_summaries"]] == ["s"]
            server.send_signal(signal.SIGINT)
            assert server.wait(timeout=20) == 0
        finally:
            server.kill()


def test_a_port_in_use_is_a_machine_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(MachineError, match=f"port {port} of 127.0.0.1 is in use"):
            call(dashboard, "--port", str(port))


def test_a_port_that_is_none() -> None:
    with pytest.raises(WrongInput, match="port: must be from 0 to 65535, not 70000"):
        call(dashboard, "--port", "70000")
