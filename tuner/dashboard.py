"""optuna-dashboard on a study, over HTTP on this machine alone, read only."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterable
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from optuna_dashboard import wsgi

from tuner.errors import MachineError
from tuner.records import Records
from tuner.shown_storage import ShownStorage
from tuner.storage import Storage

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

HOST = "127.0.0.1"
"""Never another: the dashboard knows no passwords."""
_DETAIL = re.compile(r"/api/studies/(\d+)/?")


class _Server(ThreadingMixIn, WSGIServer):
    # A browser opens connections ahead of need; one that stays silent would block a single thread.
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the page asks every few seconds."""


def application(storage: Storage, records: Records) -> WSGIApplication:
    """Return the dashboard as a WSGI application that changes nothing and knows our best trial."""
    shown = ShownStorage(storage.optuna, records)
    inner: WSGIApplication = wsgi(shown)

    def guarded(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            start_response("403 Forbidden", [("Content-Type", "application/json")])
            return [b'{"reason": "this dashboard only shows"}']
        detail = _DETAIL.fullmatch(environ.get("PATH_INFO", ""))
        if detail and _exists(shown, int(detail[1])) and not shown.has_best(int(detail[1])):
            return _without_best(inner, environ, start_response)
        return inner(environ, start_response)

    return guarded


def make_dashboard(storage: Storage, records: Records, port: int) -> WSGIServer:
    """Bind a server to `port` (0: any free one) of this machine; `serve_forever` runs it.

    Raises:
        MachineError: the port is in use, or may not be used.
    """
    try:
        return make_server(HOST, port, application(storage, records), server_class=_Server, handler_class=_Quiet)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise MachineError(f"port {port} of {HOST} is in use: choose another with --port") from error
        raise MachineError(f"port {port} of {HOST} cannot be used ({error.strerror})") from error


def address(server: WSGIServer, storage: Storage, study: str) -> str:
    """Return the URL of a study's page; of the list where Optuna does not know the study yet."""
    root = f"http://{HOST}:{server.server_port}/dashboard"
    try:
        return f"{root}/studies/{storage.optuna.get_study_id_from_name(study)}"
    except KeyError:
        return root


def _exists(shown: ShownStorage, study_id: int) -> bool:
    try:
        shown.get_study_name_from_id(study_id)
    except KeyError:
        return False
    return True


def _without_best(inner: WSGIApplication, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Answer with no best trial: the dashboard names one as soon as any trial ended, fitting or not."""
    said: list[Any] = []
    # An answer that is changed on the way must not be compressed.
    environ.pop("HTTP_ACCEPT_ENCODING", None)

    def remember(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
        said[:] = [status, headers]
        return lambda data: None

    body = b"".join(inner(environ, remember))
    status, headers = said
    if status.startswith("200"):
        body = json.dumps({**json.loads(body), "best_trials": []}).encode()
    kept = [(name, value) for name, value in headers if name.lower() != "content-length"]
    start_response(status, [*kept, ("Content-Length", str(len(body)))])
    return [body]
