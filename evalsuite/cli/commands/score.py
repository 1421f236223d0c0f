"""`evalsuite score`: scores the responses of a run again."""

import argparse
from pathlib import Path

from evalsuite.cli.options import add_quiet
from evalsuite.foundation.parser import command


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = command(
        commands,
        "score",
        help="score a finished run again, with its own or another scorer, without inference",
        example=(
            "  evalsuite score runs/first\n"
            "  evalsuite score runs/first --scorer first_word --benchmark pocket_facts --out runs/words"
        ),
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder with responses")
    parser.add_argument(
        "--scorer", metavar="NAME", help="a name from `evalsuite show scorers` (default: the run's own)"
    )
    parser.add_argument(
        "--benchmark",
        dest="benchmarks",
        nargs="+",
        default=(),
        metavar="NAME",
        help="only these benchmarks (default: all with generated responses that the scorer can read)",
    )
    parser.add_argument(
        "--metric", metavar="NAME", help="main metric (default: the benchmark's, or the scorer's first)"
    )
    parser.add_argument(
        "--out", type=Path, help="run folder for the new scores (default: RUN-SCORER); RUN stays as it is"
    )
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="allow task files that can run Python"
    )
    add_quiet(parser)
    parser.set_defaults(call=run)


def run(arguments: argparse.Namespace) -> int:
    """Score, and print scores and the run folder."""
    from evalsuite.evaluation.rescore import rescore

    print(
        rescore(
            arguments.run,
            arguments.out,
            scorer=arguments.scorer,
            benchmarks=arguments.benchmarks,
            metric=arguments.metric,
            trust_remote_code=arguments.trust_remote_code,
            quiet=arguments.quiet,
        )
    )
    return 0
