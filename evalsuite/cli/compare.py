"""`evalsuite compare`: the leaderboards of runs, or of checkpoints that are evaluated first."""

import argparse
from pathlib import Path

from evalsuite.cli.options import add_data_option, add_model_options, add_quiet
from evalsuite.cli.parser import command


def add(commands: argparse._SubParsersAction) -> None:
    """Add the verb."""
    parser = command(
        commands,
        "compare",
        help="write the leaderboards (HTML, CSV, Markdown, JSON) of runs or checkpoints",
        example=(
            "  evalsuite compare runs/first runs/second --out report\n"
            "  evalsuite compare ./student-a ./student-b --suite quick --teacher ./teacher --out report"
        ),
    )
    parser.add_argument("inputs", nargs="+", metavar="RUN-or-CHECKPOINT")
    parser.add_argument("--suite", help="what checkpoints are asked (only with checkpoints)")
    parser.add_argument("--teacher", help="with runs: the label of the teacher; with checkpoints: its path")
    parser.add_argument("--out", type=Path, required=True, help="folder for the report")
    parser.add_argument(
        "--questions",
        action="store_true",
        help="show question texts in the drill-down, from the documents that the runs keep",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="a seeded sample of N documents per benchmark")
    add_model_options(parser)
    add_data_option(parser)
    add_quiet(parser)
    parser.set_defaults(call=run)


def run(arguments: argparse.Namespace) -> int:
    """Evaluate what is missing when checkpoints are given, then report."""
    from evalsuite.cli.report import print_leaderboard
    from evalsuite.foundation import ConfigError
    from evalsuite.reports import compare

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
            raise ConfigError(f"{checkpoints[0]} is a checkpoint: say with --suite what it should be asked")
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
    if arguments.questions:
        from evalsuite.evaluator.questions import questions_of

        questions = questions_of(runs)
    print_leaderboard(compare(runs, arguments.out, teacher=teacher, questions=questions))
    return 0
