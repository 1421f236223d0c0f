"""The end of modules that run by `python -m`: errors in one line, and their exit codes."""

import sys
from collections.abc import Callable
from typing import NoReturn

from evalsuite.foundation.errors import EvalsuiteError
from evalsuite.foundation.terminal import printable


def run_module(name: str, main: Callable[[], object]) -> NoReturn:
    """Call `main` and exit with 0, or with the code of its error, which is printed in one line.

    Args:
        name: of the module, which begins the line.
    """
    try:
        main()
    except EvalsuiteError as error:
        print(printable(f"{name}: {error}"), file=sys.stderr)
        sys.exit(error.exit_code)
    sys.exit(0)
