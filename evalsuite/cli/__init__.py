"""The command line: `main` turns arguments into one call and one exit code."""

from evalsuite.cli.entry import main

__all__ = ["main"]
