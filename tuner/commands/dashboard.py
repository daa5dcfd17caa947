"""``tuner dashboard``: optuna-dashboard on a study."""

from __future__ import annotations

import argparse
from contextlib import closing

from tuner.commands.common import add_study_options, open_records, pick_study
from tuner.errors import ExitCode, WrongInput

HELP = "show a study in a browser, on this machine alone; Ctrl-C ends it"
PORT = 8080


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_study_options(parser)
    parser.add_argument("--port", type=int, default=PORT, help=f"{PORT} unless said; 0 takes any free one")


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    from tuner.dashboard import address, make_dashboard

    if not 0 <= args.port <= 65535:
        raise WrongInput("port", "must be from 0 to 65535", args.port)
    storage, records = open_records(args)
    with closing(storage):
        study = pick_study(records, args.study)
        server = make_dashboard(storage, records, args.port)
        print(f"study {study.name}: {address(server, storage, study.name)}   (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
        finally:
            server.server_close()
    return ExitCode.DONE
