"""`evalsuite run`: ask checkpoints everything a suite holds, under both protocols."""

import argparse
from pathlib import Path

from evalsuite.cli.options import (
    add_data_option,
    add_engine_option,
    add_model_options,
    add_quiet,
    engine_arguments,
)
from evalsuite.cli.parser import command


def add(commands: argparse._SubParsersAction) -> None:
    """Add the verb."""
    parser = command(
        commands,
        "run",
        help="evaluate checkpoints on a suite, under log-likelihood and generation",
        example=(
            "  evalsuite run quick --teacher ./teacher --checkpoint ./student --out runs/first\n"
            "  evalsuite run pocket --teacher pocket --out runs/pocket\n"
            "  evalsuite run quick --checkpoint ./new --out runs/first --answer-only --pack new.tar.xz\n"
            "  evalsuite run quick --out runs/first --judge-only --add new.tar.xz"
        ),
    )
    parser.add_argument("suite", help="a name from `evalsuite show suites`, or a YAML file")
    parser.add_argument(
        "--checkpoint",
        nargs="+",
        default=[],
        metavar="PATH",
        help="hub id, folder (of one or of many), GGUF file or 'pocket'",
    )
    parser.add_argument("--teacher", metavar="PATH", help="what the others are measured against")
    parser.add_argument("--out", type=Path, required=True, help="run folder; the same command resumes")
    parser.add_argument("--limit", type=int, metavar="N", help="a seeded sample of N documents per benchmark")
    parser.add_argument(
        "--skip-missing",
        action="store_true",
        help="leave out benchmarks whose data is not here and contexts longer than any model's, by name",
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
    parser.add_argument(
        "--protocol",
        choices=("loglikelihood", "generation"),
        action="append",
        default=[],
        help="with --answer-only: only these questions, as when two processes share a GPU",
    )
    parser.add_argument(
        "--benchmarks",
        nargs="+",
        default=[],
        metavar="NAME[,NAME…]",
        help="with --answer-only: only these, in this order; those joined by commas are answered together",
    )
    parser.add_argument(
        "--pack",
        type=Path,
        metavar="FILE",
        help="with --answer-only: pack the answers and the students' loss curves, as .tar.xz",
    )
    parser.add_argument(
        "--add",
        type=Path,
        nargs="+",
        default=[],
        metavar="PIECE",
        help="with --judge-only: first add what other machines answered (--pack, or their run folders)",
    )
    add_model_options(parser)
    add_data_option(parser)
    add_quiet(parser)
    parser.set_defaults(call=run, phases=None)


def run(arguments: argparse.Namespace) -> int:
    """Evaluate, and say where the records are."""
    from evalsuite.evaluator import PHASES, evaluate
    from evalsuite.foundation import ConfigError

    phases = arguments.phases or PHASES
    if not arguments.checkpoint and not arguments.teacher and phases != ("judge",):
        raise ConfigError("name at least one --checkpoint or a --teacher")
    if (arguments.protocol or arguments.benchmarks or arguments.pack) and phases != ("answer",):
        raise ConfigError("--protocol, --benchmarks and --pack belong to --answer-only")
    if arguments.add and phases != ("judge",):
        raise ConfigError("--add belongs to --judge-only")
    try:
        summary = evaluate(
            arguments.suite,
            arguments.checkpoint,
            arguments.out,
            teacher=arguments.teacher,
            data_dir=arguments.data,
            limit=arguments.limit,
            engine=arguments.engine,
            engine_arguments=engine_arguments(arguments),
            device=arguments.device,
            dtype=arguments.dtype,
            trust_remote_code=arguments.trust_remote_code,
            phases=phases,
            dry_run=arguments.dry_run,
            skip_missing=arguments.skip_missing,
            protocols=arguments.protocol,
            groups=[names.split(",") for names in arguments.benchmarks],
            pieces=arguments.add,
            workers=None,
            quiet=arguments.quiet,
        )
        print(summary)
    finally:
        # Whatever an interrupted machine answered is worth bringing home.
        if arguments.pack is not None and any((arguments.out / "answers").glob("*.jsonl")):
            from evalsuite.evaluator.pieces import pack

            print(f"packed into {pack(arguments.out, arguments.pack)}")
    return 0
