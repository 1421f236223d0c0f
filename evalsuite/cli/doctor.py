"""`evalsuite doctor`: are this model's numbers artefacts of how it is run?"""

import argparse
from contextlib import nullcontext
from pathlib import Path

from evalsuite.cli.options import add_data_option, add_engine_option, add_model_options, engine_arguments
from evalsuite.cli.parser import command


def add(commands: argparse._SubParsersAction) -> None:
    """Add the verb."""
    parser = command(
        commands,
        "doctor",
        help="ask in every way that should not matter (batched, padded, packed, decoded, cast), and compare",
        example=("  evalsuite doctor ./student --out runs/first\n  evalsuite doctor pocket --documents 16"),
    )
    parser.add_argument("checkpoint", help="hub id, folder, GGUF file or 'pocket'")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="RUN",
        help="a run folder: its documents are asked, and what is found is written beside its records, where "
        "`compare` heeds it",
    )
    parser.add_argument(
        "--benchmark",
        nargs="+",
        metavar="NAME",
        help="ask these instead (default: pocket_cloze pocket_facts)",
    )
    parser.add_argument(
        "--documents", type=int, default=48, metavar="N", help="how many are asked (default: %(default)s)"
    )
    add_engine_option(parser, "vllm: ask vLLM too, and compare")
    add_model_options(parser)
    add_data_option(parser)
    parser.set_defaults(call=run)


def run(arguments: argparse.Namespace) -> int:
    """Examine, print the table, and say where it was written."""
    from evalsuite.evaluator import examination
    from evalsuite.evaluator.answer import placement, serve
    from evalsuite.evaluator.checkpoints import positions
    from evalsuite.foundation import ConfigError
    from evalsuite.models.checkpoints import load_checkpoint
    from evalsuite.models.doctor import examine, report

    if arguments.documents < 1:
        raise ConfigError(f"--documents {arguments.documents}: must be at least 1")
    device, dtype = placement(arguments.device, arguments.dtype)
    trusted, given = arguments.trust_remote_code, engine_arguments(arguments)
    # What vLLM cannot serve is refused before anything is loaded.
    served = (
        serve(arguments.checkpoint, dtype, given, trust_remote_code=trusted)
        if arguments.engine == "vllm"
        else None
    )
    checkpoint = load_checkpoint(
        arguments.checkpoint,
        dtype=dtype,
        device=device,
        trust_remote_code=trusted,
    )
    if arguments.out is not None and not arguments.benchmark:
        requests = examination.requests_of_run(arguments.out, checkpoint.tokenizer, arguments.documents)
    else:
        requests = examination.requests_of(
            arguments.benchmark or examination.POCKET,
            checkpoint.tokenizer,
            arguments.documents,
            arguments.data,
            positions(checkpoint.model.config),
        )
    with served or nullcontext() as vllm:
        result = examine(checkpoint, requests, vllm)
    print(report(result))
    if arguments.out is not None:
        print(f"written to {examination.write(arguments.out, examination.examined(result))}")
    return 0
