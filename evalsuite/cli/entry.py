"""Dispatch of commands."""

import sys
from collections.abc import Sequence

import evalsuite
from evalsuite.cli.commands import (
    admit,
    bench,
    cache,
    compare,
    convert,
    demo,
    distance,
    distill,
    doctor,
    export,
    gate,
    prepare,
    probe,
    run,
    score,
    select,
    show,
    validate,
    view,
)
from evalsuite.cli.exit_codes import guarded
from evalsuite.foundation.parser import Parser

VERBS = (
    demo,
    distill,
    select,
    prepare,
    run,
    score,
    compare,
    gate,
    admit,
    view,
    export,
    bench,
    distance,
    probe,
    doctor,
    convert,
    show,
    validate,
    cache,
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
    arguments = parser.parse_args(argv)
    return guarded(
        f"evalsuite {arguments.verb}",
        lambda: arguments.call(arguments),
        resumable=arguments.verb in RESUMABLE,
    )
