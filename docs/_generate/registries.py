"""Tables of registries: name and description of every definition that evalsuite itself registers."""

from collections.abc import Callable
from typing import Any

from evalsuite.cli.commands.show import first_sentence
from evalsuite.foundation.registry import Registry


def own(registry: Registry[Any]) -> list[str]:
    """Return the names that evalsuite defines; installed plugins must not change the documentation."""
    return [name for name in registry if registry.origin(name) == "evalsuite"]


def table(registry: Registry[Any], describe: Callable[[Any], str | None] = lambda item: item.__doc__) -> str:
    """Return name and first sentence of every definition.

    Args:
        describe: docstring of a definition.
    """
    rows = [(name, first_sentence(describe(registry[name]))) for name in own(registry)]
    lines = [f"| `{name}` | {text.replace('|', chr(92) + '|')} |" for name, text in rows]
    return "\n".join((f"| {registry.kind} | description |", "|---|---|", *lines))
