"""`evalsuite validate`: what a file of one's own is, and whether it can be used."""

import argparse

from evalsuite.foundation.parser import command


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = command(
        commands,
        "validate",
        help="check files: questions, benchmarks, suites, recipes, gate policies, run configurations",
        example="  evalsuite validate questions.jsonl suite.yaml gate.yaml",
    )
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="YAML file, or questions (.jsonl, .csv, .parquet), perhaps with columns: q.csv:answer=solution",
    )
    parser.set_defaults(call=run)


def run(arguments: argparse.Namespace) -> int:
    """Print what each file is; files that cannot be used are all named."""
    from evalsuite.foundation import EvalsuiteError
    from evalsuite.validation import validate

    wrong: list[EvalsuiteError] = []
    for file in arguments.files:
        try:
            print(validate(file))
        except EvalsuiteError as error:
            wrong.append(error)
    if wrong:
        raise type(wrong[0])("\n".join(map(str, wrong)))
    return 0
