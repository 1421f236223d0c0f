"""`evalsuite bench`: what checkpoints cost, and how fast the parts of evalsuite are."""

import argparse
import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from evalsuite.cli.options import add_engine_option, add_model_options, engine_arguments
from evalsuite.cli.parser import Parser, command

if TYPE_CHECKING:
    from evalsuite.models.efficiency import Cost
    from evalsuite.models.engine.vllm_engine import VllmEngine

PARTS = {
    "engine": ("evalsuite.models.bench_engine", ()),
    "mixers": ("evalsuite.models.bench", ("mixers",)),
    "distill": ("evalsuite.distill.bench", ()),
}
"""Where the comparison of a part lives, and what its own command line begins with."""


def add(commands: argparse._SubParsersAction) -> None:
    """Add the verb."""
    parser = command(
        commands,
        "bench",
        help="measure speed, memory and state of checkpoints, or compare parts of evalsuite with others",
        example=(
            "  evalsuite bench ./teacher ./student --contexts 512 2048 --out runs/first\n"
            "  evalsuite bench engine --checkpoint pocket --mixer gated_deltanet\n"
            "  evalsuite bench mixers --help"
        ),
    )
    parser.add_argument(
        "what",
        metavar="CHECKPOINT | engine | mixers | distill",
        help="a checkpoint, or: engine (beside lm-eval's HFLM), mixers (each against its torch form), "
        "distill (training beside a plain loop)",
    )
    parser.add_argument(
        "rest",
        nargs=argparse.REMAINDER,
        metavar="...",
        help="more checkpoints and options; see `bench engine -h`, `bench pocket -h`",
    )
    parser.set_defaults(call=run)


def run(arguments: argparse.Namespace) -> int:
    """Hand over to the part that is meant; checkpoints are measured here."""
    if arguments.what not in PARTS:
        return checkpoints([arguments.what, *arguments.rest])
    module, begin = PARTS[arguments.what]
    try:
        importlib.import_module(module).main([*begin, *arguments.rest])
    except SystemExit as stop:
        # The parts have plain argparse, whose code for a usage mistake is the gate's for 'inconclusive'.
        return 64 if stop.code == 2 else int(stop.code or 0)
    return 0


def checkpoints(argv: Sequence[str]) -> int:
    """Measure checkpoints, print a table, and write it beside a run if one is named."""
    parser = Parser(prog="evalsuite bench", description="What checkpoints cost on this machine.")
    parser.add_argument("checkpoints", nargs="+", metavar="CHECKPOINT")
    parser.add_argument(
        "--contexts", nargs="+", type=int, default=[512, 2048], metavar="T", help="default: 512 2048"
    )
    parser.add_argument("--batch", nargs="+", type=int, default=[1], metavar="B", help="sequences at once")
    parser.add_argument(
        "--out", type=Path, metavar="RUN", help="run folder whose efficiency.jsonl gets the numbers"
    )
    add_engine_option(parser, "what runs them")
    add_model_options(parser)
    options = parser.parse_args(argv)

    from evalsuite.evaluator.answer import placement, serve
    from evalsuite.models.checkpoints import load_checkpoint
    from evalsuite.models.efficiency import Cost, keep, measure, table

    device, dtype = placement(options.device, options.dtype)
    found: list[tuple[str, Cost]] = []
    sizes = [(context, batch) for context in options.contexts for batch in options.batch]
    given, trusted = engine_arguments(options), options.trust_remote_code
    # What vLLM cannot serve is refused before anything is measured.
    engines = {
        path: serve(path, dtype, given, trust_remote_code=trusted)
        for path in options.checkpoints
        if options.engine == "vllm"
    }
    for path in options.checkpoints:
        if path in engines:
            label, costs = engines[path].info.label, _served(engines[path], sizes)
        else:
            checkpoint = load_checkpoint(path, dtype=dtype, device=device, trust_remote_code=trusted)
            label, costs = checkpoint.label, (measure(checkpoint, *size) for size in sizes)
        for cost in costs:
            found.append((label, cost))
            if options.out is not None:
                keep(options.out / "efficiency.jsonl", cost)
    print(table(found))
    if options.out is not None:
        print(f"written to {options.out / 'efficiency.jsonl'}")
    return 0


def _served(served: "VllmEngine", sizes: Sequence[tuple[int, int]]) -> "Iterator[Cost]":
    """What a checkpoint costs in vLLM, measured as it is asked for."""
    from evalsuite.models.vllm_plugin.cost import measure_served

    with served as engine:
        for context, batch in sizes:
            yield measure_served(engine.info, context, batch, engine)
