"""Strict YAML: unknown keys and invalid values are refused by name.

Not imported by the package's `__init__`: the infer phase runs without pydantic.
"""

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from evalsuite.foundation.errors import ConfigError, nearest


class Strict(BaseModel):
    """Base of frozen configuration classes that refuse unknown keys and NaN."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=False)


StrictModel = TypeVar("StrictModel", bound=Strict)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read one YAML mapping.

    Raises:
        ConfigError: the file is missing, is not YAML, or is not a mapping.
    """
    path = Path(path)
    try:
        value = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # ValueError: a date that does not exist, or a number with thousands of digits.
        raise ConfigError(f"{path}: not YAML ({error})") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: expected a mapping of keys to values, found {type(value).__name__}")
    return value


def parse(value: dict[str, Any], kind: type[StrictModel], source: str) -> StrictModel:
    """Validate `value` as `kind`.

    Raises:
        ConfigError: one line per mistake, each with source, field, value and, for an unknown key, the
            nearest known one.
    """
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        lines = [_explain(mistake, kind, source) for mistake in error.errors()]
        raise ConfigError("\n".join(lines)) from None


def load(path: Path, kind: type[StrictModel]) -> StrictModel:
    """Read a YAML file and validate it as `kind`. Raises ConfigError as `read_yaml` and `parse` do."""
    return parse(read_yaml(path), kind, str(path))


def _explain(mistake: Any, kind: type[BaseModel], source: str) -> str:
    where = ".".join(str(part) for part in mistake["loc"])
    if mistake["type"] == "extra_forbidden":
        *parents, key = mistake["loc"]
        return f"{source}: unknown key '{where}'{nearest(str(key), _known_keys(kind, parents))}"
    if mistake["type"] == "missing":
        return f"{source}: '{where}' is required"
    # A mistake inside a group names its fields; printing the whole group would bury it.
    value = "" if isinstance(mistake["input"], dict) else f" = {mistake['input']!r}"
    place = f"'{where}'{value}: " if where else ""
    return f"{source}: {place}{mistake['msg'].removeprefix('Value error, ')}"


def _known_keys(kind: Any, parents: list[Any]) -> list[str]:
    """Return the field names of the configuration class at `parents`, as far as annotations tell."""
    for part in parents:
        field = getattr(kind, "model_fields", {}).get(part)
        if field is not None:
            kind = _config_class(field.annotation)
        elif not (isinstance(kind, type) and issubclass(kind, BaseModel)):
            return []
    return list(getattr(kind, "model_fields", {}))


def _config_class(annotation: Any) -> Any:
    """Return the configuration class inside Optional[…], list[…] or dict[…, …]; None if there is none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        found = _config_class(inner)
        if found is not None:
            return found
    return None
