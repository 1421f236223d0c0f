"""What `<!-- generate: WHAT -->` may name: configuration classes, the command line, registries."""

from importlib import import_module

from docs._generate import commands, fields


def generate(what: str) -> str:
    """Return Markdown for a directive.

    Raises:
        ValueError: an unknown directive; MkDocs stops with it.
    """
    kind, *names = what.split()
    if kind == "commands":
        return commands.reference()
    if kind == "fields":
        return fields.reference(*(load(name) for name in names))
    raise ValueError(f"unknown directive '{what}'; known: commands, fields CLASS …")


def load(name: str) -> type:
    """Return the object of a dotted name, such as `evalsuite.distill.recipe.Recipe`."""
    module, _, attribute = name.rpartition(".")
    found: type = getattr(import_module(module), attribute)
    return found
