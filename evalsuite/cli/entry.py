"""Dispatch of commands, and their exit codes.

0 is success (or a gate that passes); 1, 2 and 3 are the gate's other verdicts and nothing else; every error
of any command is 64 or more.
"""

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any, cast

import evalsuite
from evalsuite.cli import describe_interrupt, retired
from evalsuite.cli.commands import (
    admit,
    bench,
    compare,
    demo,
    distance,
    distill,
    doctor,
    export,
    gate,
    prepare,
    probe,
    run,
    select,
    show,
    view,
)
from evalsuite.cli.parser import Parser
from evalsuite.foundation import EvalsuiteError, RunFolderError
from evalsuite.foundation.dependencies import missing_dependency
from evalsuite.foundation.terminal import PrintableStream, printable

CRASHED = 70
INPUT_OUTPUT = 74
"""A broken pipe, or a file that the system cannot read or write."""

VERBS = (
    demo,
    distill,
    select,
    prepare,
    run,
    compare,
    gate,
    admit,
    view,
    export,
    bench,
    distance,
    probe,
    doctor,
    show,
)
RESUMABLE = ("demo", "distill", "select", "prepare", "run", "probe")
"""Commands that resume when they are repeated."""


def build_parser() -> Parser:
    """Return the parser of every command."""
    parser = Parser(
        prog="evalsuite",
        description="Distill Transformers into linear-attention and hybrid models, and evaluate the loss.",
        epilog="example: evalsuite demo --out runs/demo",
    )
    parser.add_argument("--version", action="version", version=f"evalsuite {evalsuite.__version__}")
    commands = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND", parser_class=Parser)
    for verb in VERBS:
        verb.add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    parser = build_parser()
    refusal = retired.refusal(argv)
    if refusal is not None:
        parser.error(refusal)
    arguments = parser.parse_args(argv)
    try:
        with redirect_stdout(cast(Any, PrintableStream(sys.stdout))):
            return int(arguments.call(arguments))
    except EvalsuiteError as error:
        _print_error(arguments.verb, error)
        return error.exit_code
    except ModuleNotFoundError as error:
        missing = missing_dependency(error, arguments.verb)
        if missing is None:
            traceback.print_exc()
            return CRASHED
        _print_error(arguments.verb, missing)
        return missing.exit_code
    except KeyboardInterrupt as interrupt:
        word, code = describe_interrupt(interrupt)
        how = "; repeat the command to resume" if arguments.verb in RESUMABLE else ""
        _print_error(arguments.verb, word + how)
        return code
    except BrokenPipeError:
        # The reader is gone (`| head`); stdout is redirected so that the interpreter does not complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return INPUT_OUTPUT
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
        if is_full or error.filename is not None:
            _print_error(arguments.verb, f"{error.filename or 'output'}: {error.strerror}")
            return RunFolderError.exit_code if is_full else INPUT_OUTPUT
        traceback.print_exc()
        return CRASHED
    except Exception:
        # Python's exit code for an unhandled exception is 1, which would read as a proven regression.
        traceback.print_exc()
        return CRASHED


def _print_error(verb: str, error: object) -> None:
    print(printable(f"evalsuite {verb}: {error}"), file=sys.stderr)
