"""An option of several values that is repeated loses none of them."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from evalsuite.cli.entry import build_parser
from evalsuite.foundation.parser import Parser


def parsers(parser: Parser) -> Iterator[Parser]:
    """A parser, and those of its commands."""
    yield parser.completed()
    for _, command in parser._commands():
        yield from parsers(command)


def test_repeated_values_follow_those_before() -> None:
    options = [
        (parser, action)
        for parser in parsers(build_parser())
        for action in parser._actions
        if action.nargs == "+" and action.option_strings
    ]
    assert len(options) > 20
    for parser, action in options:
        namespace = argparse.Namespace()
        for values in (["first"], ["second", "third"]):
            action(parser, namespace, values, action.option_strings[0])
        kept = getattr(namespace, action.dest)
        assert kept in (["first", "second", "third"], [["first"], ["second", "third"]]), (
            f"{parser.prog} {action.option_strings[0]}"
        )


def test_a_default_is_replaced_by_what_is_given() -> None:
    parser = Parser()
    parser.add_argument("--batch", nargs="+", type=int, default=[1])
    assert parser.parse_args([]).batch == [1]
    assert parser.parse_args(["--batch", "2", "--batch", "3", "4"]).batch == [2, 3, 4]


def test_every_module_reads_its_options_with_this_parser() -> None:
    """argparse's own drops repeated values, and its exit code for usage errors is a verdict of the gate."""
    root = Path(__file__).parents[2]
    rooms = ("evalsuite", "tasks", "models", "distill", "reports", "tests")
    own = "argparse.ArgumentParser" + "("
    assert not [path for room in rooms for path in (root / room).rglob("*.py") if own in path.read_text()]
