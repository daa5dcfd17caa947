"""``tuner search``: find the fastest strategy that fits, and prove it."""

from __future__ import annotations

import argparse
from pathlib import Path

from tuner.commands.common import add_study_options, add_train_steps_option
from tuner.commands.workload_options import add_device_options, add_workload_options, spec_flags
from tuner.errors import ExitCode

HELP = "measure strategies on this machine and prove the fastest that fits"
EPILOG = """examples:
  tuner search --budget-gb 24
  tuner search --budget-gb 24 --model ./my-llama --adapter lora --seq-len 2048 --time-budget 1h
  tuner search --spec studies/llama7b_24gb.yaml
The same command again goes on where it stopped; with another time or filter too."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--spec", metavar="FILE", type=Path, help="YAML with any of these options as keys; a flag wins over the file"
    )
    add_workload_options(parser)
    add_device_options(parser)
    group = parser.add_argument_group("how to search")
    group.add_argument(
        "--time-budget", metavar="T", help="of this invocation, the proof included: 90s, 30m (the default), 2h"
    )
    group.add_argument(
        "--trials", metavar="N", help="launches of this invocation at most; retries and proofs are not counted"
    )
    group.add_argument(
        "--fix", action="append", metavar="KNOB=VALUE", help="only this value of a knob, as mode=default"
    )
    group.add_argument(
        "--knob", action="append", metavar="KNOB=V,V", help="only these values of a knob, as scope=layer,whole"
    )
    group.add_argument("--sampler", metavar="S", help="tpe (the default), gp or random")
    add_train_steps_option(group)
    group.add_argument(
        "--cold", action="store_true", default=None, help="every trial compiles with an empty cache of its own"
    )
    add_study_options(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object a trial on stdout")


def run(args: argparse.Namespace) -> int:
    """Search, and print what was found."""
    from tuner.progress import listening, make_console
    from tuner.report import summary
    from tuner.report_view import print_report
    from tuner.session import open_search
    from tuner.spec import inherited_environment, read_spec
    from tuner.stopping import stop_signals

    spec = read_spec(args.spec, spec_flags(args))
    with (
        stop_signals() as stopped,
        listening(args.json) as listener,
        open_search(spec, inherited_environment(), listener, stopped) as session,
    ):
        best = session.search.ledger.best()
        listener.started(session.study, session.notes, spec.trials, spec.time_budget_seconds, best)
        end = session.search.run()
        listener.finished(end.reason)
        records = session.records.for_key(session.study.key)
        report = summary(session.study, records, session.eager_only, train_steps=spec.train_steps)
    if not args.json:
        print_report(report, make_console())
    return ExitCode(end.exit_code)
