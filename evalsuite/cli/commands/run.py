"""`evalsuite run`: evaluate checkpoints on a suite under both protocols."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from evalsuite.cli.options import (
    add_data_option,
    add_engine_option,
    add_executor_options,
    add_model_options,
    add_quiet,
    engine_arguments,
    executor_arguments,
    given_options,
    without_defaults,
)
from evalsuite.foundation.parser import command

if TYPE_CHECKING:
    from evalsuite.config import RunConfig


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = command(
        commands,
        "run",
        help="evaluate checkpoints on a suite, under log-likelihood and generation",
        example=(
            "  evalsuite run quick --teacher ./teacher --checkpoint ./student --out runs/first\n"
            "  evalsuite run arc_easy,gsm8k:0shot:limit=200 --checkpoint ./student --out runs/second\n"
            "  evalsuite run questions.jsonl --checkpoint ./student --out runs/own\n"
            "  evalsuite run --config run.yaml --limit 100\n"
            "  evalsuite run --out runs/first --infer-only --export-shard a.tar.xz\n"
            "  evalsuite run --out runs/first --score-only --merge-shards a.tar.xz"
        ),
    )
    parser.add_argument(
        "suite",
        nargs="?",
        help="suites, benchmarks (`evalsuite show`), YAML files of either and files of your own questions "
        "(.jsonl, .csv, .parquet), joined by commas; each can have options after colons: "
        "arc_easy,gsm8k:0shot,hellaswag:loglikelihood:limit=200,questions.csv:answer=solution. Optional "
        "without the build phase",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="YAML file with these options as keys (docs/reference); options given here take precedence",
    )
    parser.add_argument(
        "--checkpoint",
        dest="checkpoints",
        nargs="+",
        metavar="PATH",
        help="hub id, folder (of one checkpoint or of many), GGUF file or 'pocket'; PATH:weights=int8|fp8 "
        "and PATH:state=bf16|fp8|int8 are variants with rounded weights and recurrent states",
    )
    parser.add_argument("--teacher", metavar="PATH", help="the checkpoint that the others are compared with")
    parser.add_argument("--out", type=Path, help="run folder; repeat the command to resume")
    parser.add_argument("--limit", type=int, metavar="N", help="a seeded sample of N documents per benchmark")
    parser.add_argument(
        "--max-length",
        type=int,
        metavar="N",
        help="read contexts of up to N tokens where a checkpoint's config states fewer positions; scores "
        "beyond those are marked out of distribution",
    )
    parser.add_argument(
        "--skip-missing",
        action="store_true",
        help="leave out benchmarks without data or consent to execute code, by name",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="refuse contexts that a checkpoint does not support, which are otherwise left out by name",
    )
    add_engine_option(parser, "inference engine")
    add_executor_options(parser, "inference runs")
    parser.add_argument(
        "--no-cache",
        dest="cache",
        action="store_false",
        help="neither use responses of runs in other folders nor share those of this run (`evalsuite cache`)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print documents, tokens and expected time, and exit"
    )
    parser.add_argument(
        "--policy",
        type=Path,
        metavar="FILE",
        help="with --dry-run: also print how often this gate policy would notice a loss of 5 points, as "
        "`evalsuite gate --plan`",
    )
    parser.add_argument(
        "--benchmarks",
        nargs="+",
        metavar="NAME[,NAME…]",
        help="only these benchmarks of the suite or run, in this order; names joined by commas form one "
        "batch of inference",
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
        dest="protocols",
        choices=("loglikelihood", "generation"),
        action="append",
        help="with --infer-only: only this protocol, e.g. for two processes on one GPU",
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
        metavar="FILE",
        help="with --score-only: first merge shards of other machines (--export-shard, or run folders)",
    )
    phases.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="processes that build and score (default: one per processor if there is enough work)",
    )
    parser.add_argument(
        "--track", metavar="TRACKER", help="also log scores to an experiment tracker: tensorboard or trackio"
    )
    add_model_options(parser)
    add_data_option(parser)
    add_quiet(parser)
    without_defaults(parser)
    parser.set_defaults(call=run)


def run(arguments: argparse.Namespace) -> int:
    """Evaluate, and print scores and the run folder."""
    config = run_config(arguments)
    if "dry_run" in arguments:
        return _dry_run(arguments, config)
    from evalsuite.evaluation import evaluate

    try:
        print(evaluate(config))
    finally:
        if config.export_shard is not None and Path(config.export_shard).is_file():
            print(f"shard written to {config.export_shard}")
    return 0


def _dry_run(arguments: argparse.Namespace, config: "RunConfig") -> int:
    """Print the work of a run, and what a policy would notice in it."""
    # Needs the harnesses, which a host that only runs inference lacks.
    from evalsuite.evaluation import estimate_run
    from evalsuite.reports import load_policy
    from evalsuite.reports.gate.plan import plan_policy

    policy = load_policy(arguments.policy) if "policy" in arguments else None
    estimate = estimate_run(config)
    print(estimate)
    if policy is not None and estimate.manifest is not None:
        print(f"\n{plan_policy(policy, manifests=[estimate.manifest]).text}")
    return 0


def run_config(arguments: argparse.Namespace) -> "RunConfig":
    """Return the configuration of the options and of `--config`.

    Raises:
        ConfigError: as `RunConfig`, or no run folder.
    """
    from evalsuite.config import RunConfig, read_run_config
    from evalsuite.foundation import ConfigError

    options = given_options(arguments, "config", "dry_run", "policy")
    if "policy" in arguments and "dry_run" not in arguments:
        raise ConfigError("--policy belongs to --dry-run; gate a finished run with `evalsuite gate --policy`")
    if "engine_args" in options:
        options["engine_args"] = engine_arguments(arguments)
    if "executor_args" in options:
        options["executor_args"] = executor_arguments(arguments)
    if "config" in arguments:
        config = read_run_config(arguments.config, **options)
    elif "out" not in options:
        raise ConfigError("no run folder given: pass --out RUN")
    else:
        config = RunConfig(**options)
    if config.workers is None and {"build", "score"} & set(config.phases):
        return replace(config, workers="auto")
    return config
