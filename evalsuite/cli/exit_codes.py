"""Exit codes of commands.

0 is success (or a gate that passes); 1, 2 and 3 are the gate's other verdicts and nothing else; every error
of any command is 64 or more.
"""

import errno
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any, cast

from evalsuite.cli.interrupts import describe_interrupt
from evalsuite.foundation import EvalsuiteError, RunFolderError
from evalsuite.foundation.dependencies import missing_dependency
from evalsuite.foundation.terminal import PrintableStream, printable

CRASHED = 70
INPUT_OUTPUT = 74
"""A broken pipe, or a file that the system cannot read or write."""


def guarded(name: str, call: Callable[[], int], *, resumable: bool) -> int:
    """Return the exit code of a command; errors print one line, and defects a traceback.

    Args:
        name: of the command, which begins the line.
        resumable: whether the command resumes when it is repeated.
    """
    try:
        with redirect_stdout(cast(Any, PrintableStream(sys.stdout))):
            code = int(call())
        sys.stdout.flush()
        return code
    except EvalsuiteError as error:
        _print_error(name, error)
        return error.exit_code
    except ModuleNotFoundError as error:
        missing = missing_dependency(error, name.removeprefix("evalsuite "))
        if missing is None:
            traceback.print_exc()
            return CRASHED
        _print_error(name, missing)
        return missing.exit_code
    except KeyboardInterrupt as interrupt:
        word, code = describe_interrupt(interrupt)
        how = "; repeat the command to resume" if resumable else ""
        _print_error(name, word + how)
        return code
    except BrokenPipeError:
        # The reader is gone (`| head`); stdout is redirected so that the interpreter does not complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return INPUT_OUTPUT
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
        if is_full or error.filename is not None:
            _print_error(name, f"{error.filename or 'output'}: {error.strerror}")
            return RunFolderError.exit_code if is_full else INPUT_OUTPUT
        traceback.print_exc()
        return CRASHED
    except Exception:
        # Python's exit code for an unhandled exception is 1, which would read as a proven regression.
        traceback.print_exc()
        return CRASHED


def _print_error(name: str, error: object) -> None:
    print(printable(f"{name}: {error}"), file=sys.stderr)
