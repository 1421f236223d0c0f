"""Dataclasses from JSON, checked against their annotations with the standard library alone.

What users write is validated by `evalsuite.foundation.strict`; this is for files that evalsuite writes, also
on a host without pydantic.
"""

import dataclasses
import math
from collections.abc import Mapping
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from evalsuite.foundation.errors import DataError, nearest

T = TypeVar("T")
_SCALARS = {str: "text", int: "an integer", float: "a number", bool: "true or false", type(None): "null"}


class _MistakeError(ValueError):
    """What is wrong, with the place in front."""


def from_json(value: Any, kind: type[T], source: str) -> T:
    """Return a JSON value as a dataclass.

    Fields may be scalars, `Literal`, unions, tuples of any length, dictionaries, dataclasses and `Any`; lists
    become tuples. A ``__post_init__`` reports what else is wrong by a ValueError.

    Raises:
        DataError: a key that is unknown or missing, or a value of another type; the message names source, key
            and value.
    """
    try:
        found: T = _convert(value, kind, "")
    except _MistakeError as error:
        raise DataError(f"{source}: {error}") from None
    except RecursionError:
        raise DataError(f"{source}: nested too deeply") from None
    return found


def to_json(value: Any) -> Any:
    """Return a dataclass as a JSON value, without optional fields that are empty."""
    if dataclasses.is_dataclass(value):
        held = [(field, getattr(value, field.name)) for field in dataclasses.fields(value)]
        return {
            field.name: to_json(each)
            for field, each in held
            if not (_is_optional(field) and (each is None or each in ("", (), {})))
        }
    if isinstance(value, Mapping):
        return {str(key): to_json(each) for key, each in value.items()}
    return [to_json(each) for each in value] if isinstance(value, list | tuple) else value


def _is_optional(field: "dataclasses.Field[Any]") -> bool:
    has_default = field.default is not dataclasses.MISSING
    return has_default or field.default_factory is not dataclasses.MISSING


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _convert(value: Any, kind: Any, where: str) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return _checked(value, where)
    if origin is Literal:
        if not any(value == each and type(value) is type(each) for each in inner):
            raise _wrong(value, where, f"expected one of {', '.join(map(str, inner))}")
        return value
    if origin in (Union, UnionType):
        return _member(value, inner, where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise _wrong(value, where, "expected a list")
        return tuple(_convert(each, inner[0], f"{where}[{number}]") for number, each in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise _wrong(value, where, "expected an object")
        return {
            _key(key, inner[0], where): _convert(each, inner[1], _below(where, key))
            for key, each in value.items()
        }
    if dataclasses.is_dataclass(kind):
        return _dataclass(value, kind, where)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind or (kind is float and not math.isfinite(value)):
        raise _wrong(value, where, f"expected {_SCALARS[kind]}")
    return _checked(value, where)


def _dataclass(value: Any, kind: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise _wrong(value, where, "expected an object")
    known = {field.name: field for field in dataclasses.fields(kind)}
    for key in value:
        if key not in known:
            raise _MistakeError(f"unknown key '{_below(where, key)}'{nearest(str(key), known)}")
    for name, field in known.items():
        if name not in value and not _is_optional(field):
            raise _MistakeError(f"'{_below(where, name)}' is required")
    hints = _hints(kind)
    converted = {name: _convert(each, hints[name], _below(where, name)) for name, each in value.items()}
    try:
        return kind(**converted)
    except _MistakeError:
        raise
    except ValueError as error:
        raise _MistakeError(f"'{where}': {error}" if where else str(error)) from None


def _member(value: Any, members: tuple[Any, ...], where: str) -> Any:
    """Return the value as the first type of a union that takes it."""
    reasons = []
    for kind in members:
        try:
            return _convert(value, kind, where)
        except _MistakeError as error:
            reasons.append((kind, error))
    # What is wrong inside an object or a list is named by its own place.
    held = [error for kind, error in reasons if kind not in _SCALARS and isinstance(value, list | Mapping)]
    if held:
        raise held[0]
    raise _wrong(value, where, f"expected {' or '.join(map(_name, members))}")


def _name(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    return _SCALARS.get(kind, "a list" if get_origin(kind) is tuple else "an object")


def _key(key: Any, kind: Any, where: str) -> Any:
    if kind is not int:
        return _checked(key, where)
    if type(key) is int:
        return key
    if isinstance(key, str) and key.isascii() and key.isdigit() and str(int(key[:20])) == key:
        return int(key)
    raise _MistakeError(f"'{where}': key {key!r}: expected an integer")


def _checked(value: Any, where: str) -> Any:
    """Return a JSON value. A text with half of a surrogate pair, which could not be written, is a mistake."""
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _wrong(value, where, "not Unicode") from None
    elif isinstance(value, Mapping):
        for key, each in value.items():
            _checked(key, where)
            _checked(each, _below(where, key))
    elif isinstance(value, list):
        for each in value:
            _checked(each, where)
    return value


def _wrong(value: Any, where: str, what: str) -> _MistakeError:
    # A mistake inside a group names its fields; printing the whole group would bury it.
    given = "" if isinstance(value, list | Mapping) else f" = {value!r}"
    return _MistakeError(f"'{where}'{given}: {what}" if where else f"{what}, found {type(value).__name__}")


def _below(where: str, key: Any) -> str:
    return f"{where}.{key}" if where else str(key)
