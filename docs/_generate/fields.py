"""Tables of configuration classes: key, type, default and meaning, from the classes themselves."""

import ast
import dataclasses
import inspect
import json
import textwrap
import types
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from evalsuite.reports.gate.policy import Policy

PLAIN = {str: "text", int: "integer", float: "number", bool: "true or false", Any: "any value", Path: "path"}
COMPARISONS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
REQUIRED = object()
ELSEWHERE: dict[type, str] = {Policy: "gate-policy.md"}
"""Classes that other configurations contain → the page that describes them."""


@dataclasses.dataclass(frozen=True)
class Key:
    """One key of a configuration class."""

    name: str
    annotation: Any
    default: Any
    """`REQUIRED` if there is none."""
    limits: tuple[Any, ...] = ()
    """Bounds, as annotated_types states them."""

    @property
    def row(self) -> tuple[str, str, str]:
        """Name, type and default as Markdown."""
        bounds = [
            f"{sign} {getattr(limit, name)}"
            for limit in self.limits
            for name, sign in COMPARISONS.items()
            if getattr(limit, name, None) is not None
        ]
        return f"`{self.name}`", ", ".join((words(self.annotation), *bounds)), in_yaml(self.default)


def reference(*roots: type) -> str:
    """Return one section for each class and for every class that its keys contain."""
    found = reachable(*roots)
    return "\n\n".join(section(kind, found[:at]) for at, kind in enumerate(found))


def reachable(*roots: type) -> list[type]:
    """Return configuration classes in order of first use, depth first."""
    found: list[type] = []

    def visit(kind: type) -> None:
        if kind not in found:
            found.append(kind)
            for key in keys(kind):
                for inner in classes(key.annotation):
                    if inner not in ELSEWHERE:
                        visit(inner)

    for root in roots:
        visit(root)
    return found


def is_config(kind: Any) -> bool:
    """Whether a type is a configuration class: of pydantic, or a dataclass."""
    return isinstance(kind, type) and (issubclass(kind, BaseModel) or dataclasses.is_dataclass(kind))


def classes(annotation: Any) -> Iterator[type]:
    """Yield the configuration classes inside a type."""
    if is_config(annotation):
        yield annotation
    for inner in get_args(annotation):
        yield from classes(inner)


def keys(kind: type) -> list[Key]:
    """Return the keys of a configuration class, inherited ones included."""
    if issubclass(kind, BaseModel):
        return [
            Key(
                field.alias or name,
                field.annotation,
                REQUIRED if field.is_required() else field.get_default(call_default_factory=True),
                tuple(field.metadata),
            )
            for name, field in kind.model_fields.items()
        ]
    # Imported for type checkers only, so that reading a run's configuration needs no pydantic.
    hints = get_type_hints(kind, localns={"Policy": Policy})
    found = []
    for field in dataclasses.fields(kind):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        found.append(
            Key(field.name, hints[field.name], REQUIRED if default is dataclasses.MISSING else default)
        )
    return found


def section(kind: type, documented: Sequence[type] = ()) -> str:
    """Return heading, docstring and table of a class; keys of a base that is documented are not repeated."""
    base = next((each for each in kind.__mro__[1:] if each in documented), None)
    known = {key.name: (key.row, meaning(base, key.name)) for key in keys(base)} if base else {}
    rows = [
        "| " + " | ".join(cell.replace("|", "\\|") for cell in (*key.row, text)) + " |"
        for key in keys(kind)
        if known.get(key.name) != (key.row, text := meaning(kind, key.name))
    ]
    parts = [f"### {kind.__name__}", inspect.cleandoc(kind.__doc__ or "").replace("``", "`")]
    if base:
        link = f"[{base.__name__}](#{base.__name__.lower()})"
        parts.append(f"The keys of {link}{', and:' if rows else '.'}")
    if rows:
        parts.append("\n".join(("| key | type | default | meaning |", "|---|---|---|---|", *rows)))
    return "\n\n".join(parts)


def words(annotation: Any) -> str:
    """Return a type in words: `list of text`, `` `chat` or `literal` ``."""
    if annotation in PLAIN:
        return PLAIN[annotation]
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in inner)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(words(each) for each in inner if each is not type(None)))
    if origin in (list, tuple, Sequence):
        return f"list of {words(inner[0])}"
    if origin in (dict, Mapping):
        return f"mapping of {words(inner[0])} to {words(inner[1])}"
    if hasattr(annotation, "__metadata__"):
        return words(inner[0])
    if is_config(annotation):
        page = ELSEWHERE.get(annotation, "")
        return f"[{annotation.__name__}]({page}#{annotation.__name__.lower()})"
    raise TypeError(f"no words for the type {annotation!r}")


def in_yaml(value: Any) -> str:
    """Return a default as YAML would state it; `required` without one, a dash for none."""
    if value is REQUIRED:
        return "required"
    if value is None or (isinstance(value, str) and not value):
        return "–"
    if is_config(type(value)):
        return "its defaults"
    if isinstance(value, list | tuple | dict) and not value:
        return "empty"
    return f"`{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}`"


def meaning(kind: type, name: str) -> str:
    """Return the docstring below a field, on one line."""
    for owner in kind.__mro__:
        if is_config(owner) and owner is not BaseModel:
            text = docstrings(owner).get(name) or docstrings(owner).get(f"{name}_")
            if text:
                return text.replace("``", "`")
    return ""


@cache
def docstrings(kind: type) -> dict[str, str]:
    """Return field → the string below its definition in the class."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(tree, ast.ClassDef)
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in zip(tree.body, tree.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }
