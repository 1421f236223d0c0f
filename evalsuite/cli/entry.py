"""Dispatch of commands, and their exit codes.

0 is success (or a gate that passes); 1, 2 and 3 are the gate's other verdicts and nothing else; every error
of any command is 64 or more.
"""

import errno
import os
import sys
import traceback
from collections.abc import Sequence

import evalsuite
from evalsuite.cli import bench, compare, demo, distill, doctor, gate, prepare, retired, run, select, show
from evalsuite.cli.parser import Parser
from evalsuite.foundation import EvalsuiteError, RunFolderError
from evalsuite.foundation.dependencies import missing_dependency

INTERRUPTED = 130
CRASHED = 70
BROKEN_PIPE = 74

VERBS = (demo, distill, select, prepare, run, compare, gate, bench, doctor, show)
RESUMABLE = ("demo", "distill", "select", "prepare", "run")
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
        return int(arguments.call(arguments))
    except EvalsuiteError as error:
        print(f"evalsuite {arguments.verb}: {error}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        missing = missing_dependency(error, arguments.verb)
        if missing is None:
            traceback.print_exc()
            return CRASHED
        print(f"evalsuite {arguments.verb}: {missing}", file=sys.stderr)
        return missing.exit_code
    except KeyboardInterrupt:
        how = "; repeat the command to resume" if arguments.verb in RESUMABLE else ""
        print(f"evalsuite {arguments.verb}: interrupted{how}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader is gone (`| head`); stdout is redirected so that the interpreter does not complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            print(
                f"evalsuite {arguments.verb}: {error.filename or 'output'}: {error.strerror}", file=sys.stderr
            )
            return RunFolderError.exit_code
        traceback.print_exc()
        return CRASHED
    except Exception:
        # Python's exit code for an unhandled exception is 1, which would read as a proven regression.
        traceback.print_exc()
        return CRASHED
