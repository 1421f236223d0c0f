"""An argparse parser whose usage errors exit with 64 and suggest the nearest known name."""

import argparse
import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from evalsuite.foundation.errors import ConfigError, nearest
from evalsuite.foundation.terminal import printable


class _Store(argparse._StoreAction):
    """Stores values, those of an option that takes several and is repeated after those before.

    argparse would drop what was given first, in silence.
    """

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: Any = None
    ) -> None:
        before = getattr(namespace, self.dest, self.default)
        if self.nargs == "+" and before is not self.default:
            values = [*before, *values]
        setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
    """Exits with 64 on usage errors: argparse's own 2 is the gate's verdict 'inconclusive'."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        for name in (None, "store"):
            self.register("action", name, _Store)

    complete: Callable[[], None] | None = None
    """Adds options that take long to know; called once, when the parser is used."""

    def completed(self) -> "Parser":
        """Return the parser with all of its options."""
        if self.complete is not None:
            complete, self.complete = self.complete, None
            complete()
        return self

    def parse_known_args(self, *arguments: Any, **named: Any) -> Any:
        """Parse, as argparse does, with all options."""
        return super(Parser, self.completed()).parse_known_args(*arguments, **named)

    def error(self, message: str) -> NoReturn:
        """Print the usage, the message and the nearest known option or command; exit with 64."""
        self.print_usage(sys.stderr)
        self.exit(ConfigError.exit_code, f"{self.prog}: {message}{self._hint(message)}\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        super()._print_message(printable(message), file)

    def _hint(self, message: str) -> str:
        unknown = re.search(r"unrecognized arguments: (--?[\w-]+)", message)
        if unknown:
            owners = self._commands_with(unknown.group(1))
            return f"; an option of {', '.join(owners)}" if owners else nearest(unknown[1], self._options())
        wrong = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if wrong:
            return nearest(wrong.group(1), re.findall(r"[\w-]+", wrong.group(2)))
        return ""

    def _options(self) -> set[str]:
        """Return the options of this parser and of its commands."""
        options = {name for action in self.completed()._actions for name in action.option_strings}
        return options.union(*(verb._options() for _, verb in self._commands()))

    def _commands_with(self, option: str) -> list[str]:
        """Return the commands that have an option, which another command or this parser lacks."""
        return [name for name, verb in self._commands() if option in verb._options()]

    def _commands(self) -> "list[tuple[str, Parser]]":
        found = (a.choices for a in self._actions if isinstance(a, argparse._SubParsersAction))
        return [item for choices in found for item in choices.items()]


def command(commands: "argparse._SubParsersAction[Parser]", name: str, *, help: str, example: str) -> Parser:
    """Add a command whose --help ends with an example that can be pasted."""
    return commands.add_parser(
        name,
        help=help,
        description=help[0].upper() + help[1:] + ".",
        epilog=f"example:\n{example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
