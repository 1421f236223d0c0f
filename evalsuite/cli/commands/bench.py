"""`evalsuite bench`: speed, memory and cache size of checkpoints."""

import argparse
from pathlib import Path
from typing import Any

from evalsuite.cli.options import add_engine_option, add_model_options, engine_arguments
from evalsuite.cli.parser import command


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = command(
        commands,
        "bench",
        help="measure speed, memory and cache size of checkpoints on this machine",
        example=(
            "  evalsuite bench pocket\n"
            "  evalsuite bench ./teacher ./student --contexts 512 2048 --out runs/first"
        ),
    )
    parser.add_argument(
        "checkpoints", nargs="+", metavar="CHECKPOINT", help="hub id, folder, GGUF file or 'pocket'"
    )
    parser.add_argument(
        "--contexts",
        nargs="+",
        type=int,
        default=[512, 2048],
        metavar="T",
        help="context lengths (default: 512 2048)",
    )
    parser.add_argument("--batch", nargs="+", type=int, default=[1], metavar="B", help="batch sizes")
    parser.add_argument(
        "--out", type=Path, metavar="RUN", help="run folder; the numbers are appended to its efficiency.jsonl"
    )
    add_engine_option(parser, "inference engine")
    add_model_options(parser)
    parser.set_defaults(call=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure checkpoints, print a table, and write it to the run folder if one is given."""
    from evalsuite.evaluation.infer import check_device, engine_factory
    from evalsuite.models.inference.registry import engine_type
    from evalsuite.models.throughput import Throughput, format_throughput, save_throughput

    engine_args = engine_arguments(arguments)
    make: Any = engine_factory(
        arguments.engine,
        device=arguments.device,
        dtype=arguments.dtype,
        trust_remote_code=arguments.trust_remote_code,
        arguments=engine_args,
    )
    check_device(arguments.engine, arguments.device)
    # Refuse what the engine cannot serve before measuring anything.
    opened = {
        path: make(path, None)
        for path in arguments.checkpoints
        if engine_type(arguments.engine, engine_args).opens_unloaded
    }
    found: list[tuple[str, Throughput]] = []
    for path in arguments.checkpoints:
        engine = opened.get(path) or make(path, None)
        try:
            for context in arguments.contexts:
                for batch in arguments.batch:
                    measured = engine.measure(context, batch)
                    found.append((engine.label, measured))
                    if arguments.out is not None:
                        save_throughput(arguments.out / "efficiency.jsonl", measured)
        finally:
            engine.close()
    print(format_throughput(found))
    if arguments.out is not None:
        print(f"written to {arguments.out / 'efficiency.jsonl'}")
    return 0
