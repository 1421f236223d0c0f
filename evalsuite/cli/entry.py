"""Dispatch, and the promise about exit codes.

0 done (or the gate passes), 1, 2 and 3 are verdicts of the gate and nothing else; every error of any
command is 64 or more.
"""

import errno
import os
import sys
import traceback
from collections.abc import Sequence

import evalsuite
from evalsuite.cli import bench, compare, demo, distill, doctor, gate, prepare, run, select, show
from evalsuite.cli.parser import Parser
from evalsuite.foundation import EvalsuiteError, RunFolderError

INTERRUPTED = 130
CRASHED = 70
BROKEN_PIPE = 74

VERBS = (demo, distill, select, prepare, run, compare, gate, bench, doctor, show)


def build_parser() -> Parser:
    """Return the parser of every verb."""
    parser = Parser(prog="evalsuite", description="What was lost when a Transformer became a linear one?")
    parser.add_argument("--version", action="version", version=f"evalsuite {evalsuite.__version__}")
    commands = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND", parser_class=Parser)
    for verb in VERBS:
        verb.add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = build_parser().parse_args(argv)
    try:
        return int(arguments.call(arguments))
    except EvalsuiteError as error:
        print(f"evalsuite {arguments.verb}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"evalsuite {arguments.verb}: interrupted; the same command resumes", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader went away (`| head`); stdout is closed so that the interpreter does not complain again.
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
        # Python's own exit code for an unhandled exception is 1, which would read as a proven regression.
        traceback.print_exc()
        return CRASHED
