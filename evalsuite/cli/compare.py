"""`evalsuite compare`: the leaderboards of runs, or of checkpoints that are evaluated first."""

import argparse
import sys
from pathlib import Path
from typing import Any

from evalsuite.cli.options import add_model_options, add_quiet, add_selection_options, selection_of
from evalsuite.cli.parser import command


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = command(
        commands,
        "compare",
        help="write the leaderboards (HTML, CSV, Markdown, JSON) of runs or checkpoints",
        example=(
            "  evalsuite compare runs/first runs/second --out report\n"
            "  evalsuite compare runs/first --policy gate.yaml --data data --out report\n"
            "  evalsuite compare runs/first --redact --out docs/leaderboard\n"
            "  evalsuite compare ./student-a ./student-b --suite quick --teacher ./teacher --out report"
        ),
    )
    parser.add_argument("inputs", nargs="+", metavar="RUN-or-CHECKPOINT")
    parser.add_argument("--suite", help="suite to run on checkpoints (only with checkpoints)")
    parser.add_argument("--out", type=Path, required=True, help="folder for the report")
    parser.add_argument("--policy", type=Path, help="gate policy; the report shows its verdict")
    parser.add_argument(
        "--questions",
        action="store_true",
        help="show question texts in the drill-down, from the documents in the run folders",
    )
    parser.add_argument(
        "--redact",
        action="store_true",
        help="omit question texts and absolute paths, for a page that is published",
    )
    parser.add_argument(
        "--export-samples",
        action="store_true",
        help="also write every response and score by document id, without questions (OUT/samples/*.parquet)",
    )
    add_selection_options(parser)
    parser.add_argument("--limit", type=int, metavar="N", help="a seeded sample of N documents per benchmark")
    add_model_options(parser)
    parser.add_argument(
        "--data",
        type=Path,
        help="frozen data, as written by `evalsuite prepare`: source of question texts, and of documents for "
        "checkpoints (default for checkpoints: EVALSUITE_DATA, else the hub)",
    )
    add_quiet(parser)
    parser.set_defaults(call=run)


def run(arguments: argparse.Namespace) -> int:
    """Evaluate checkpoints, if any are given, and write the report."""
    from evalsuite.foundation import ConfigError
    from evalsuite.reports import compare, load_policy

    if arguments.redact and arguments.questions:
        raise ConfigError("--redact omits question texts: pass either it or --questions")
    policy = None if arguments.policy is None else load_policy(arguments.policy)
    runs = [Path(name) for name in arguments.inputs if (Path(name) / "plan.yaml").is_file()]
    checkpoints = [name for name in arguments.inputs if Path(name) not in runs]
    if runs and checkpoints:
        raise ConfigError(
            f"{checkpoints[0]}: not a run folder (no plan.yaml); pass either run folders or checkpoints"
        )
    teacher = arguments.teacher
    if checkpoints:
        from evalsuite.evaluation import evaluate

        if arguments.suite is None:
            raise ConfigError(
                f"{checkpoints[0]}: not a run folder (no plan.yaml); to evaluate a checkpoint, pass --suite"
            )
        runs = [arguments.out / "run"]
        evaluate(
            arguments.suite,
            checkpoints,
            runs[0],
            teacher=teacher,
            data_dir=arguments.data,
            limit=arguments.limit,
            device=arguments.device,
            dtype=arguments.dtype,
            trust_remote_code=arguments.trust_remote_code,
            quiet=arguments.quiet,
        )
        teacher = None
    questions = None
    if (arguments.questions or arguments.data is not None) and not arguments.redact:
        from evalsuite.evaluation.prompts import QuestionTexts

        questions = QuestionTexts(runs, arguments.data)
    comparison = compare(
        runs,
        arguments.out,
        selection=selection_of(arguments, teacher),
        questions=questions,
        redacted=arguments.redact,
        policy=policy,
    )
    if arguments.export_samples:
        from evalsuite.reports.exports.samples import export_samples

        export_samples(runs, arguments.out)
    print_leaderboard(comparison)
    for benchmark, why in (questions.missing if questions is not None else {}).items():
        print(f"{benchmark}: {why}", file=sys.stderr)
    return 0


def print_leaderboard(comparison: Any) -> None:
    """Print the leaderboard of an `evalsuite.reports.comparison.Comparison` and the path of its page."""
    print(comparison.text.rstrip())
    print(f"\npage: {comparison.page}")
