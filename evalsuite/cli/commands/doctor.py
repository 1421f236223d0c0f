"""`evalsuite doctor`: are a model's numbers artefacts of batching, padding, packing, decoding or dtype?"""

import argparse
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

from evalsuite.cli.options import add_data_option, add_engine_option, add_model_options, engine_arguments
from evalsuite.foundation.parser import command


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = command(
        commands,
        "doctor",
        help="check that batching, padding, packing, decoding and dtype do not change the scores",
        example=("  evalsuite doctor ./student --out runs/first\n  evalsuite doctor pocket --documents 16"),
    )
    parser.add_argument("checkpoint", help="hub id, folder, GGUF file or 'pocket'")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="RUN",
        help="run folder: its documents are used, and the findings are written to its doctor.json, which "
        "`compare` reads",
    )
    parser.add_argument(
        "--benchmark",
        nargs="+",
        metavar="NAME",
        help="use these benchmarks instead (default: pocket_cloze pocket_facts)",
    )
    parser.add_argument(
        "--documents", type=int, default=48, metavar="N", help="number of documents (default: %(default)s)"
    )
    add_engine_option(parser, "another engine to compare with")
    add_model_options(parser)
    add_data_option(parser)
    parser.set_defaults(call=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the checks, print the table, and write it to the run folder if one is given."""
    from evalsuite.evaluation import checks
    from evalsuite.evaluation.inference.engines import engine_factory, resolve_device
    from evalsuite.evaluation.served import format_served
    from evalsuite.foundation import ConfigError
    from evalsuite.models.checkpoints.load import load_checkpoint, with_decoder
    from evalsuite.models.checkpoints.positions import max_positions
    from evalsuite.models.diagnostics.consistency_checks import format_checks, run_consistency_checks

    if arguments.documents < 1:
        raise ConfigError(f"--documents {arguments.documents}: must be at least 1")
    device, dtype = resolve_device(arguments.device, arguments.dtype)
    trusted = arguments.trust_remote_code
    # Refuse what another engine cannot serve before loading anything.
    make: Any = engine_factory(
        arguments.engine,
        device=arguments.device,
        dtype=arguments.dtype,
        trust_remote_code=trusted,
        arguments=engine_arguments(arguments),
    )
    served = make(arguments.checkpoint, None) if arguments.engine != "torch" else None
    loaded = load_checkpoint(
        arguments.checkpoint,
        dtype=dtype,
        device=device,
        trust_remote_code=trusted,
        as_decoder=False,
    )
    checkpoint = with_decoder(loaded)

    def sample(count: int) -> list[Any]:
        if arguments.out is not None and not arguments.benchmark:
            return checks.sample_run_requests(arguments.out, checkpoint.tokenizer, count)
        return checks.sample_benchmark_requests(
            arguments.benchmark or checks.DEFAULT_BENCHMARKS,
            checkpoint.tokenizer,
            count,
            arguments.data,
            max_positions(checkpoint.model.config),
            trust_remote_code=trusted,
        )

    requests = sample(arguments.documents)
    load = [each for each in sample(2 * arguments.documents) if each not in requests] if served else []
    with closing(served) if served else nullcontext() as other:
        result = run_consistency_checks(checkpoint, requests, other, loaded.model, load)
    print(format_checks(result))
    if served:
        print(f"\n{format_served(result['served'], result['dtype'])}")
    if arguments.out is not None:
        print(f"written to {checks.write_findings(arguments.out, checks.summarize_checks(result))}")
    return 0
