"""`evalsuite compare`: the leaderboards of runs, or of checkpoints that are evaluated first."""

import argparse
import sys
from pathlib import Path

from evalsuite.cli.options import add_model_options, add_quiet
from evalsuite.cli.parser import command


def add(commands: argparse._SubParsersAction) -> None:
    """Add the verb."""
    parser = command(
        commands,
        "compare",
        help="write the leaderboards (HTML, CSV, Markdown, JSON) of runs or checkpoints",
        example=(
            "  evalsuite compare runs/first runs/second --out report\n"
            "  evalsuite compare runs/first --policy gate.yaml --data data --out report\n"
            "  evalsuite compare runs/first --published --out docs/leaderboard\n"
            "  evalsuite compare ./student-a ./student-b --suite quick --teacher ./teacher --out report"
        ),
    )
    parser.add_argument("inputs", nargs="+", metavar="RUN-or-CHECKPOINT")
    parser.add_argument("--suite", help="what checkpoints are asked (only with checkpoints)")
    parser.add_argument("--teacher", help="with runs: the label of the teacher; with checkpoints: its path")
    parser.add_argument("--out", type=Path, required=True, help="folder for the report")
    parser.add_argument("--policy", type=Path, help="judge the students by it and show the verdict")
    parser.add_argument(
        "--questions",
        action="store_true",
        help="show question texts in the drill-down, from the documents that the runs keep",
    )
    parser.add_argument(
        "--published",
        action="store_true",
        help="for a page that is put online: no question texts, no absolute paths",
    )
    parser.add_argument(
        "--answers",
        action="store_true",
        help="also write every answer and score by document id, without questions (OUT/answers/*.parquet)",
    )
    parser.add_argument(
        "--least",
        type=share,
        default=0.0,
        metavar="SHARE",
        help="leave a student out of benchmarks of which it answered less than this share of its teacher's "
        "documents, such as 0.75: what an interrupted run answered first is no sample",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="a seeded sample of N documents per benchmark")
    add_model_options(parser)
    parser.add_argument(
        "--data",
        type=Path,
        help="frozen data, as written by `evalsuite prepare`: question texts are joined from it, and "
        "checkpoints are evaluated on it (these by default on EVALSUITE_DATA, else the hub)",
    )
    add_quiet(parser)
    parser.set_defaults(call=run)


def share(text: str) -> float:
    """A fraction from 0 to 1. Raises ArgumentTypeError for anything else."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share from 0 to 1")
    return value


def run(arguments: argparse.Namespace) -> int:
    """Evaluate what is missing when checkpoints are given, then report."""
    from evalsuite.cli.report import print_leaderboard
    from evalsuite.foundation import ConfigError
    from evalsuite.reports import compare, load_policy

    if arguments.published and arguments.questions:
        raise ConfigError("--published leaves question texts out: give either it or --questions")
    policy = None if arguments.policy is None else load_policy(arguments.policy)
    runs = [Path(name) for name in arguments.inputs if (Path(name) / "plan.yaml").is_file()]
    checkpoints = [name for name in arguments.inputs if Path(name) not in runs]
    if runs and checkpoints:
        raise ConfigError(
            f"{checkpoints[0]}: not a run folder (it has no plan.yaml); give either runs or checkpoints"
        )
    teacher = arguments.teacher
    if checkpoints:
        from evalsuite.evaluator import evaluate

        if arguments.suite is None:
            raise ConfigError(
                f"{checkpoints[0]}: not a run folder (it has no plan.yaml); for a checkpoint say with "
                "--suite what it should be asked"
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
    if (arguments.questions or arguments.data is not None) and not arguments.published:
        from evalsuite.evaluator.questions import Questions

        questions = Questions(runs, arguments.data)
    comparison = compare(
        runs,
        arguments.out,
        teacher=teacher,
        questions=questions,
        published=arguments.published,
        policy=policy,
        least=arguments.least,
    )
    if arguments.answers:
        from evalsuite.reports.answers import write_answers

        write_answers(runs, arguments.out)
    print_leaderboard(comparison)
    for benchmark, why in (questions.missing if questions is not None else {}).items():
        print(f"{benchmark}: {why}", file=sys.stderr)
    return 0
