"""`evalsuite run`: ask checkpoints everything a suite holds, under both protocols."""

import argparse
from pathlib import Path

from evalsuite.cli.options import add_data_option, add_engine_option, add_model_options, add_quiet
from evalsuite.cli.parser import command


def add(commands: argparse._SubParsersAction) -> None:
    """Add the verb."""
    parser = command(
        commands,
        "run",
        help="evaluate checkpoints on a suite, under log-likelihood and generation",
        example=(
            "  evalsuite run quick --teacher ./teacher --checkpoint ./student --out runs/first\n"
            "  evalsuite run pocket --teacher pocket --out runs/pocket"
        ),
    )
    parser.add_argument("suite", help="a name from `evalsuite show suites`, or a YAML file")
    parser.add_argument(
        "--checkpoint", nargs="+", default=[], metavar="PATH", help="hub id, folder, GGUF file or 'pocket'"
    )
    parser.add_argument("--teacher", metavar="PATH", help="what the others are measured against")
    parser.add_argument("--out", type=Path, required=True, help="run folder; the same command resumes")
    parser.add_argument("--limit", type=int, metavar="N", help="a seeded sample of N documents per benchmark")
    parser.add_argument(
        "--skip-missing", action="store_true", help="leave out benchmarks whose data is not here, by name"
    )
    add_engine_option(parser, "what answers")
    parser.add_argument("--dry-run", action="store_true", help="print documents, tokens and time, and stop")
    phase = parser.add_mutually_exclusive_group()
    for name, text in (
        ("render", "turn documents into requests"),
        ("answer", "answer requests (a GPU host needs no harness)"),
        ("judge", "turn answers into records"),
    ):
        phase.add_argument(
            f"--{name}-only", action="store_const", const=(name,), dest="phases", help=f"only {text}"
        )
    add_model_options(parser)
    add_data_option(parser)
    add_quiet(parser)
    parser.set_defaults(call=run, phases=None)


def run(arguments: argparse.Namespace) -> int:
    """Evaluate, and say where the records are."""
    from evalsuite.evaluator import PHASES, evaluate
    from evalsuite.foundation import ConfigError

    if not arguments.checkpoint and not arguments.teacher:
        raise ConfigError("name at least one --checkpoint or a --teacher")
    summary = evaluate(
        arguments.suite,
        arguments.checkpoint,
        arguments.out,
        teacher=arguments.teacher,
        data_dir=arguments.data,
        limit=arguments.limit,
        engine=arguments.engine,
        device=arguments.device,
        dtype=arguments.dtype,
        trust_remote_code=arguments.trust_remote_code,
        phases=arguments.phases or PHASES,
        dry_run=arguments.dry_run,
        skip_missing=arguments.skip_missing,
        quiet=arguments.quiet,
    )
    print(summary)
    return 0
