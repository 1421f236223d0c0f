"""`evalsuite demo`: distillation, evaluation and leaderboard of the built-in pocket models."""

import argparse
import time
from pathlib import Path

from evalsuite.foundation.parser import command


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = command(
        commands,
        "demo",
        help="distill three students from the pocket teacher, evaluate them, and write the leaderboard",
        example="  evalsuite demo --out runs/demo",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/demo"), help="run folder (default: %(default)s)"
    )
    parser.add_argument("--suite", default="pocket-quick", help="suite to run (default: %(default)s)")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    parser.set_defaults(call=run)


def run(arguments: argparse.Namespace) -> int:
    """Distill, evaluate and compare; print the leaderboard and the path of the page."""
    from evalsuite.cli.commands.compare import print_leaderboard
    from evalsuite.config import RunConfig
    from evalsuite.distill import distill, load_recipe
    from evalsuite.evaluation import evaluate
    from evalsuite.evaluation.prompts import QuestionTexts
    from evalsuite.reports import compare

    started = time.monotonic()
    out: Path = arguments.out
    students = distill(load_recipe("pocket"), out / "students", quiet=arguments.quiet)
    distilled = time.monotonic()
    evaluate(
        RunConfig(
            suite=arguments.suite,
            checkpoints=[str(path) for path in students],
            teacher="pocket",
            out=out,
            quiet=arguments.quiet,
        )
    )
    evaluated = time.monotonic()
    comparison = compare([out], out / "report", questions=QuestionTexts([out]))
    ended = time.monotonic()
    print_leaderboard(comparison)
    print(
        f"distilled in {distilled - started:.0f} s, evaluated in {evaluated - distilled:.0f} s, "
        f"reported in {ended - evaluated:.0f} s"
    )
    return 0
