"""The dashboard over real HTTP, and in a real browser where there is one."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIServer

import optuna
import pytest

from tests.tuner.made import record_of, study_of
from tuner.dashboard import address, make_dashboard
from tuner.errors import MachineError
from tuner.outcome import Outcome
from tuner.record import TrialRecord
from tuner.records import Records
from tuner.storage import Storage, open_storage
from tuner.told import attributes_of
from tuner.units import GIB

LAYER = {"mode": "default", "scope": "layer"}
GRAPHS = {"mode": "reduce-overhead", "scope": "layer"}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Made:
    """A database with the study `s`, told to Optuna as a search does."""

    def __init__(self, folder: Path) -> None:
        self.storage: Storage = open_storage(f"sqlite:///{folder}/tuner.db", folder)
        self.records = Records(self.storage.engine)
        self.records.add_study(study_of())
        self.study = optuna.create_study(study_name="s", storage=self.storage.optuna, direction="maximize")

    def told(self, record: TrialRecord) -> None:
        """Write the record, then tell Optuna."""
        trial = self.study.ask({"mode": optuna.distributions.CategoricalDistribution(("off", "default", "x"))})
        self.records.add(record.model_copy(update={"number": trial.number}))
        for name, value in attributes_of(record).items():
            trial.set_user_attr(name, value)
        if record.tokens_per_s is None or record.peak_device_bytes is None:
            self.study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            return
        trial.set_constraint("memory", record.peak_device_bytes / record.limit_bytes - 1)
        self.study.tell(trial, record.tokens_per_s)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    made = Made(tmp_path)
    yield made
    made.storage.close()


@pytest.fixture
def server(made: Made) -> Iterator[WSGIServer]:
    server = make_dashboard(made.storage, made.records, 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def get(server: WSGIServer, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}{path}", timeout=20) as answer:
        return json.loads(answer.read())


def shown(trial: dict[str, Any]) -> dict[str, str]:
    return {pair["key"]: pair["value"] for pair in trial["user_attrs"]}


def test_the_best_trial_is_the_fastest_that_fits(made: Made, server: WSGIServer) -> None:
    made.told(record_of(strategy={}))
    made.told(record_of(Outcome.OVER_BUDGET, GRAPHS, tokens_per_s=9000.0))
    made.told(record_of(strategy=LAYER, tokens_per_s=2000.0, source="recipe: layer"))
    made.told(record_of(Outcome.OOM, {"mode": "default"}, phase="first_step", detail="2 GiB more"))
    detail = get(server, "/api/studies/1")
    assert [t["number"] for t in detail["best_trials"]] == [2]
    over, best, dead = (detail["trials"][n] for n in (1, 2, 3))
    assert over["constraints"][0] > 0 > best["constraints"][0]
    assert dead["constraints"] == [] and dead["state"] == "Pruned"
    assert shown(best)["source"] == "recipe: layer" and "layer" in shown(best)["strategy"]
    assert float(shown(best)["tokens_per_s"]) == 2000.0
    assert (float(shown(best)["peak_device_gib"]), float(shown(best)["headroom_gib"])) == (20.0, 3.0)
    assert shown(dead)["cause"] == "out of memory in first_step"
    assert shown(dead)["detail"] == "2 GiB more"


def test_a_refuted_winner_is_not_best(made: Made, server: WSGIServer) -> None:
    made.told(record_of(strategy=LAYER, tokens_per_s=2000.0))
    made.told(record_of(strategy={}))
    made.records.add(record_of(Outcome.OVER_BUDGET, LAYER, role="proof", peak_device_bytes=24 * GIB))
    assert made.study.best_trial.number == 0, "Optuna alone still names the refuted one"
    detail = get(server, "/api/studies/1")
    assert [t["number"] for t in detail["best_trials"]] == [1]
    assert detail["trials"][0]["constraints"][0] > 0


def test_a_proved_winner_is_shown_as_its_trial(made: Made, server: WSGIServer) -> None:
    made.told(record_of(strategy=LAYER, tokens_per_s=2000.0))
    made.records.add(record_of(strategy=LAYER, role="proof", tokens_per_s=1990.0))
    best = get(server, "/api/studies/1")["best_trials"]
    assert [t["number"] for t in best] == [0]
    assert shown(best[0])["proved"] == "true" or shown(best[0])["proved"] == "True"
    assert float(shown(best[0])["tokens_per_s"]) == 1990.0


def test_a_trial_that_fits_after_all_is_best(made: Made, server: WSGIServer) -> None:
    made.told(record_of(Outcome.OOM, LAYER, needed_bytes=21 * GIB))
    made.records.add(record_of(strategy=LAYER, role="retry", tokens_per_s=2000.0))
    best = get(server, "/api/studies/1")["best_trials"]
    assert [(t["number"], t["state"], t["values"]) for t in best] == [(0, "Complete", [2000.0])]


def test_an_interrupted_trial_stays_one(made: Made, server: WSGIServer) -> None:
    asked = made.study.ask()
    for name, value in attributes_of(record_of(Outcome.INTERRUPTED, LAYER)).items():
        asked.set_user_attr(name, value)
    made.study.tell(asked, state=optuna.trial.TrialState.FAIL)
    made.told(record_of(strategy=LAYER))
    detail = get(server, "/api/studies/1")
    assert [t["state"] for t in detail["trials"]] == ["Fail", "Complete"]
    assert [t["number"] for t in detail["best_trials"]] == [1]


def test_where_nothing_fits_no_trial_is_best(made: Made, server: WSGIServer) -> None:
    made.told(record_of(Outcome.OVER_BUDGET, LAYER))
    detail = get(server, "/api/studies/1")
    assert detail["best_trials"] == [] and len(detail["trials"]) == 1


def test_a_study_of_another_program_is_left_as_it_is(made: Made, server: WSGIServer) -> None:
    other = optuna.create_study(study_name="other", storage=made.storage.optuna, direction="maximize")
    other.add_trial(optuna.trial.create_trial(value=1.0))
    assert [s["study_name"] for s in get(server, "/api/studies")["study_summaries"]] == ["s", "other"]
    assert [t["number"] for t in get(server, "/api/studies/2")["best_trials"]] == [0]


def test_a_study_that_is_not_there_is_not_found(server: WSGIServer) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(server, "/api/studies/99")


@pytest.mark.parametrize(("method", "path"), [("DELETE", "/api/studies/1"), ("POST", "/api/studies"), ("PUT", "/x")])
def test_nothing_can_be_changed(made: Made, server: WSGIServer, method: str, path: str) -> None:
    request = urllib.request.Request(f"http://127.0.0.1:{server.server_port}{path}", data=b"{}", method=method)
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(request, timeout=20)
    assert [s.study_name for s in optuna.get_all_study_summaries(made.storage.optuna)] == ["s"]


def test_a_silent_connection_blocks_nobody(made: Made, server: WSGIServer) -> None:
    import socket

    with socket.create_connection(("127.0.0.1", server.server_port)):
        assert get(server, "/api/studies")["study_summaries"]


def test_a_port_in_use_is_one_sentence(made: Made, server: WSGIServer) -> None:
    with pytest.raises(MachineError, match=f"port {server.server_port} of 127.0.0.1 is in use: .*--port"):
        make_dashboard(made.storage, made.records, server.server_port)


def test_the_address_is_that_of_the_study(made: Made, server: WSGIServer) -> None:
    root = f"http://127.0.0.1:{server.server_port}/dashboard"
    assert address(server, made.storage, "s") == f"{root}/studies/1"
    assert address(server, made.storage, "not told yet") == root


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
def test_a_browser_shows_our_best_trial(made: Made, server: WSGIServer, tmp_path: Path) -> None:
    made.told(record_of(Outcome.OVER_BUDGET, GRAPHS, tokens_per_s=9000.0))
    for _ in range(3):
        made.told(record_of(strategy={}))
    made.told(record_of(strategy=LAYER, tokens_per_s=2345.0))
    url = address(server, made.storage, "s")
    page = browse(tmp_path, url, "--dump-dom").decode()
    best = page[page.index("Best Trial") :][:2000]
    assert "2345" in best and "9000" not in best
    browse(tmp_path, url, "--window-size=1500,1800", f"--screenshot={tmp_path}/page.png")
    picture = (tmp_path / "page.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 20_000, "an empty page is a few kB"


def browse(tmp_path: Path, url: str, *arguments: str) -> bytes:
    """Let Chromium load a page without a window, and return what it printed."""
    quiet = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    quiet += " --disable-component-update --disable-sync --virtual-time-budget=20000 --disable-dev-shm-usage"
    profile = f"--user-data-dir={tmp_path}/profile"
    command = [str(CHROMIUM), *quiet.split(), profile, *arguments, url]
    return subprocess.run(command, check=True, capture_output=True, timeout=120).stdout
