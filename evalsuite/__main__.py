"""`python -m evalsuite`, for a checkout that is not installed."""

import sys

from evalsuite.cli import run

sys.exit(run())
