"""``tuner knobs``: what is searched."""

from __future__ import annotations

import argparse

from tuner.errors import ExitCode, WrongInput, nearest

HELP = "list the knobs, their values and what they do"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--explain", metavar="NAME", help="say what each value of one knob does")


def run(args: argparse.Namespace) -> int:
    """Print all knobs, or one in full."""
    from strategies.registry import KNOBS
    from tuner.knobs_view import print_knob, print_knobs

    if args.explain is None:
        print_knobs(KNOBS)
        return ExitCode.DONE
    named = {knob.name: knob for knob in KNOBS}
    if args.explain not in named:
        hint = nearest(args.explain, named) or "`tuner knobs` lists them"
        raise WrongInput("explain", "must be the name of a knob", args.explain, hint)
    print_knob(named[args.explain])
    return ExitCode.DONE
