"""`evalsuite run`: evaluate checkpoints on a suite under both protocols."""

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
    """Add the command."""
    parser = command(
        commands,
        "run",
        help="evaluate checkpoints on a suite, under log-likelihood and generation",
        example=(
            "  evalsuite run quick --teacher ./teacher --checkpoint ./student --out runs/first\n"
            "  evalsuite run pocket --teacher pocket --out runs/pocket\n"
            "  evalsuite run quick --checkpoint ./a --out runs/first --infer-only --export-shard a.tar.xz\n"
            "  evalsuite run quick --out runs/first --score-only --merge-shards a.tar.xz"
        ),
    )
    parser.add_argument("suite", help="a name from `evalsuite show suites`, or a YAML file")
    parser.add_argument(
        "--checkpoint",
        nargs="+",
        default=[],
        metavar="PATH",
        help="hub id, folder (of one checkpoint or of many), GGUF file or 'pocket'",
    )
    parser.add_argument("--teacher", metavar="PATH", help="the checkpoint that the others are compared with")
    parser.add_argument("--out", type=Path, required=True, help="run folder; repeat the command to resume")
    parser.add_argument("--limit", type=int, metavar="N", help="a seeded sample of N documents per benchmark")
    parser.add_argument(
        "--skip-missing",
        action="store_true",
        help="leave out benchmarks without data and contexts that no checkpoint supports, by name",
    )
    add_engine_option(parser, "inference engine")
    parser.add_argument(
        "--dry-run", action="store_true", help="print documents, tokens and expected time, and exit"
    )
    phases = parser.add_argument_group("phases, for runs that are split across machines")
    phase = phases.add_mutually_exclusive_group()
    for name, text in (
        ("build", "build requests from documents"),
        ("infer", "compute responses (a GPU host needs no harness)"),
        ("score", "score responses"),
    ):
        phase.add_argument(
            f"--{name}-only", action="store_const", const=(name,), dest="phases", help=f"only {text}"
        )
    phases.add_argument(
        "--protocol",
        choices=("loglikelihood", "generation"),
        action="append",
        default=[],
        help="with --infer-only: only this protocol, e.g. for two processes on one GPU",
    )
    phases.add_argument(
        "--benchmarks",
        nargs="+",
        default=[],
        metavar="NAME[,NAME…]",
        help="with --infer-only: only these benchmarks, in this order; names joined by commas form one batch",
    )
    phases.add_argument(
        "--export-shard",
        type=Path,
        metavar="FILE",
        help="with --infer-only: write responses and loss curves to FILE (.tar.xz)",
    )
    phases.add_argument(
        "--merge-shards",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="with --score-only: first merge shards of other machines (--export-shard, or run folders)",
    )
    add_model_options(parser)
    add_data_option(parser)
    add_quiet(parser)
    parser.set_defaults(call=run, phases=None)


def run(arguments: argparse.Namespace) -> int:
    """Evaluate, and print scores and the run folder."""
    from evalsuite.evaluation import PHASES, evaluate
    from evalsuite.evaluation.run_paths import responses_folder
    from evalsuite.foundation import ConfigError

    phases = arguments.phases or PHASES
    if not arguments.checkpoint and not arguments.teacher and phases != ("score",):
        raise ConfigError("no checkpoints given: pass --checkpoint and/or --teacher")
    if (arguments.protocol or arguments.benchmarks or arguments.export_shard) and phases != ("infer",):
        raise ConfigError("--protocol, --benchmarks and --export-shard require --infer-only")
    if arguments.merge_shards and phases != ("score",):
        raise ConfigError("--merge-shards requires --score-only")
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
            batches=[names.split(",") for names in arguments.benchmarks],
            shards=arguments.merge_shards,
            workers=None,
            quiet=arguments.quiet,
        )
        print(summary)
    finally:
        # An interrupted machine exports its responses, too.
        if arguments.export_shard is not None and any(responses_folder(arguments.out).glob("*.jsonl")):
            from evalsuite.evaluation.shards.export import export_shard

            print(f"shard written to {export_shard(arguments.out, arguments.export_shard)}")
    return 0
