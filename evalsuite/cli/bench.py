"""`evalsuite bench`: speed, memory and cache size of checkpoints."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from evalsuite.cli.options import add_engine_option, add_model_options, engine_arguments
from evalsuite.cli.parser import command

if TYPE_CHECKING:
    from evalsuite.models.inference.vllm.engine import VllmEngine
    from evalsuite.models.throughput import Throughput


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
    from evalsuite.evaluation.infer import resolve_device, vllm_engine
    from evalsuite.models.checkpoints import load_checkpoint
    from evalsuite.models.throughput import Throughput, format_throughput, measure_throughput, save_throughput

    device, dtype = resolve_device(arguments.device, arguments.dtype)
    found: list[tuple[str, Throughput]] = []
    sizes = [(context, batch) for context in arguments.contexts for batch in arguments.batch]
    engine_args, trusted = engine_arguments(arguments), arguments.trust_remote_code
    # Refuse what vLLM cannot serve before measuring anything.
    engines = {
        path: vllm_engine(path, dtype, engine_args, trust_remote_code=trusted)
        for path in arguments.checkpoints
        if arguments.engine == "vllm"
    }
    for path in arguments.checkpoints:
        measured: Iterator[Throughput]
        if path in engines:
            label, measured = engines[path].info.label, _measure_served(engines[path], sizes)
        else:
            checkpoint = load_checkpoint(path, dtype=dtype, device=device, trust_remote_code=trusted)
            label, measured = checkpoint.label, (measure_throughput(checkpoint, *size) for size in sizes)
        for one in measured:
            found.append((label, one))
            if arguments.out is not None:
                save_throughput(arguments.out / "efficiency.jsonl", one)
    print(format_throughput(found))
    if arguments.out is not None:
        print(f"written to {arguments.out / 'efficiency.jsonl'}")
    return 0


def _measure_served(served: "VllmEngine", sizes: Sequence[tuple[int, int]]) -> "Iterator[Throughput]":
    """Yield measurements of a checkpoint in vLLM."""
    from evalsuite.models.vllm_plugin.benchmark import measure_served

    with served as engine:
        for context, batch in sizes:
            yield measure_served(engine.info, context, batch, engine)
