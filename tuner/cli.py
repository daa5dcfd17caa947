"""The command line: parser and dispatch. Imports a command's libraries only when it runs."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from tuner import __version__
from tuner.errors import ExitCode, TunerError, disk_is_full, nearest

COMMANDS = ("search", "report", "export", "run", "dashboard", "doctor", "knobs", "studies", "clean")
DESCRIPTION = "Find the torch.compile strategy that is fastest among those that fit on your card, by measuring."
EXIT_CODES = """exit codes:
  0 done                      4 the machine cannot do it
  1 a bug of ours             5 a checked strategy does not hold
  2 wrong input               6 no verdict
  3 nothing fits              130 interrupted"""


class Parser(argparse.ArgumentParser):
    """Answers wrong input with one sentence, and the nearest name where there is one."""

    def error(self, message: str) -> NoReturn:
        """Print the sentence and exit with 2."""
        known = [option for action in self._actions for option in action.option_strings]
        unknown = re.match(r"unrecognized arguments: (\S+)", message)
        if unknown:
            hint = nearest(unknown[1].partition("=")[0], known)
            message = f"{unknown[1]} is not known" + (f" ({hint})" if hint else "")
        elif "invalid choice" in message:
            chosen = re.search(r"invalid choice: '([^']*)'", message)
            hint = nearest(chosen[1], COMMANDS) if chosen and self.prog == "tuner" else None
            message += f" ({hint})" if hint else ""
        self.exit(ExitCode.WRONG_INPUT, f"{self.prog}: {message}\n")


def make_parser() -> Parser:
    """Return the parser of all commands."""
    parser = Parser(
        prog="tuner", description=DESCRIPTION, epilog=EXIT_CODES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"compile-tuner {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    for name in COMMANDS:
        module = importlib.import_module(f"tuner.commands.{name}")
        child = commands.add_parser(
            name,
            help=module.HELP,
            description=module.HELP[0].upper() + module.HELP[1:] + ".",
            epilog=getattr(module, "EPILOG", None),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        module.add_arguments(child)
        child.set_defaults(run=module.run, parser=child)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    parser = make_parser()
    args, rest = parser.parse_known_args(argv)
    if rest:
        args.parser.error(f"unrecognized arguments: {rest[0]}")
    try:
        return int(args.run(args))
    except TunerError as error:
        print(f"tuner {args.command}: {error}", file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        print(f"tuner {args.command}: interrupted", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output has gone, as `| head` does.
        sys.stderr.close()
        return int(ExitCode.DONE)
    except Exception as error:  # one of the two entries: a traceback that reaches a user is a bug of its own
        if disk_is_full(error):
            print(f"tuner {args.command}: nothing can be written any more ({error}): free some space", file=sys.stderr)
            return int(ExitCode.MACHINE)
        log = _write_log(traceback.format_exc())
        print(
            f"tuner {args.command}: a bug of ours ({type(error).__name__}); the traceback is in {log}", file=sys.stderr
        )
        return int(ExitCode.BUG)


def _write_log(text: str) -> Path:
    with tempfile.NamedTemporaryFile("w", prefix="tuner-", suffix=".log", delete=False) as log:
        log.write(text)
    return Path(log.name)


if __name__ == "__main__":
    sys.exit(main())
