"""Exit codes of studies: 0 the statement holds, 1 it does not, 64 or more the study could not be run."""

import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from evalsuite.foundation import EvalsuiteError

USAGE = 64
CRASH = 70
INTERRUPTED = 130


def exit_with(main: Callable[[], int]) -> NoReturn:
    """Run a study and exit with its code; errors never exit with 1, which means "does not hold"."""
    try:
        code = main()
    except EvalsuiteError as error:
        print(f"error: {error}", file=sys.stderr)
        code = error.exit_code
    except SystemExit as error:  # argparse exits with 2 for a usage error
        code = USAGE if error.code == 2 else CRASH if error.code else 0
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception:
        traceback.print_exc()
        code = CRASH
    raise SystemExit(code)
