"""Tables of configuration classes: key, type, default and meaning, from the classes themselves."""

import ast
import inspect
import json
import textwrap
import types
from collections.abc import Iterator
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

PLAIN = {str: "text", int: "integer", float: "number", bool: "true or false", Any: "any value"}
COMPARISONS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}


def reference(*roots: type[BaseModel]) -> str:
    """Return one section for each class and for every class that its fields contain."""
    return "\n\n".join(section(kind) for kind in reachable(*roots))


def reachable(*roots: type[BaseModel]) -> list[type[BaseModel]]:
    """Return configuration classes in order of first use, depth first."""
    found: list[type[BaseModel]] = []

    def visit(kind: type[BaseModel]) -> None:
        if kind not in found:
            found.append(kind)
            for field in kind.model_fields.values():
                for inner in classes(field.annotation):
                    visit(inner)

    for root in roots:
        visit(root)
    return found


def classes(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the configuration classes inside a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from classes(inner)


def section(kind: type[BaseModel]) -> str:
    """Return heading, docstring and table of a class."""
    rows = [
        f"| `{field.alias or name}` | {field_type(field)} | {default(field)} | {meaning(kind, name)} |"
        for name, field in kind.model_fields.items()
    ]
    table = "\n".join(("| key | type | default | meaning |", "|---|---|---|---|", *rows))
    text = inspect.cleandoc(kind.__doc__ or "")
    return f"### {kind.__name__}\n\n{text}\n\n{table}" if rows else f"### {kind.__name__}\n\n{text}"


def field_type(field: FieldInfo) -> str:
    """Return the type of a field in words, with its bounds."""
    bounds = [
        f"{sign} {getattr(limit, name)}"
        for limit in field.metadata
        for name, sign in COMPARISONS.items()
        if getattr(limit, name, None) is not None
    ]
    return ", ".join((words(field.annotation), *bounds)).replace("|", "\\|")


def words(annotation: Any) -> str:
    """Return a type in words: `list of text`, `` `chat` or `literal` ``."""
    if annotation in PLAIN:
        return PLAIN[annotation]
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in inner)
    if origin in (Union, types.UnionType):
        return " or ".join(words(each) for each in inner if each is not type(None))
    if origin in (list, tuple):
        return f"list of {words(inner[0])}"
    if origin is dict:
        return f"mapping of {words(inner[0])} to {words(inner[1])}"
    if hasattr(annotation, "__metadata__"):
        return words(inner[0])
    if isinstance(annotation, type):
        return (
            f"[{annotation.__name__}](#{annotation.__name__.lower()})"
            if issubclass(annotation, BaseModel)
            else annotation.__name__
        )
    raise TypeError(f"no words for the type {annotation!r}")


def default(field: FieldInfo) -> str:
    """Return the default as YAML would state it; `required` without one, a dash for none."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return "its defaults"
    if value is None or value == "" or value is PydanticUndefined:
        return "–"
    if isinstance(value, list | tuple | dict) and not value:
        return "empty"
    return f"`{json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value}`"


def meaning(kind: type[BaseModel], name: str) -> str:
    """Return the docstring below a field, on one line."""
    for owner in kind.__mro__:
        if issubclass(owner, BaseModel) and name in (found := docstrings(owner)):
            return found[name].replace("|", "\\|").replace("``", "`")
    return ""


@cache
def docstrings(kind: type[BaseModel]) -> dict[str, str]:
    """Return field → the string below its definition in the class."""
    if kind is BaseModel:
        return {}
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
