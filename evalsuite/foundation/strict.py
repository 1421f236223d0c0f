"""Strict configuration: unknown keys and invalid values are refused by name.

Not imported by the package's `__init__`: the infer phase runs without pydantic.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from evalsuite.foundation.errors import ConfigError, nearest
from evalsuite.foundation.registry import Registry
from evalsuite.foundation.strict_yaml import read_yaml

Seed = Annotated[int, Field(ge=0, lt=2**63)]
"""Seed of every generator of random numbers in use, on every device."""
Positive = Annotated[int, Field(ge=1, lt=2**63)]


def _distinct(values: Any) -> Any:
    repeated = [value for number, value in enumerate(values) if value in values[:number]]
    if repeated:
        raise ValueError(f"{repeated[0]!r} is given twice")
    return values


Distinct = AfterValidator(_distinct)
"""In the annotation of a list or tuple: nothing is in it twice."""


class Strict(BaseModel):
    """Base of frozen configuration classes that refuse unknown keys and NaN."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=False)

    @classmethod
    def class_for(cls, value: Any) -> "type[Strict]":
        """The class that validates `value`: this one or, for the base of a union, the member it selects."""
        return cls

    @classmethod
    def hint(cls, key: str) -> str:
        """What follows "unknown key 'KEY'" in a message: by default the nearest known key."""
        return nearest(key, cls.model_fields)


class StrictUnion(Strict):
    """Base of a union of configuration classes, of which one key selects a member.

    The base declares the ClassVar `tag`, the selecting key, and `registry`, its members by name. A mapping
    that is validated as the base becomes an instance of the member that the tag names, or that the default of
    the tag's field does.
    """

    tag: ClassVar[str]

    @classmethod
    @abstractmethod
    def registry(cls) -> Registry[Any]:
        """The members by name."""

    @classmethod
    def usable_members(cls, names: Iterable[str]) -> dict[str, type[Self]]:
        """Those of the named members that exist and can be imported."""
        found = {}
        for name in names:
            try:
                found[name] = cls.registry().get_or_raise(name)
            except ConfigError:
                continue
        return found

    @classmethod
    def class_for(cls, value: Any) -> type[Strict]:
        """The member that an unvalidated mapping names; this class if there is none."""
        if not (cls._is_base() and isinstance(value, Mapping)):
            return cls
        name = str(cls._tag_in(value))
        return cls.usable_members([name]).get(name, cls)

    @classmethod
    def hint(cls, key: str) -> str:
        """For an unknown key: the members that have it, or the nearest key of this one."""
        members = cls.usable_members(cls.registry())
        owners = [name for name, kind in members.items() if key in kind.model_fields]
        if not owners:
            return nearest(key, cls.model_fields)
        return f": it applies to {cls.tag} {' or '.join(owners)} only"

    @classmethod
    def _is_base(cls) -> bool:
        return "tag" in cls.__dict__

    @classmethod
    def _tag_in(cls, value: Mapping[str, Any]) -> Any:
        field = cls.model_fields[cls.tag]
        return value.get(cls.tag, None if field.is_required() else field.default)

    @model_validator(mode="wrap")
    @classmethod
    def _by_tag(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not cls._is_base() or not isinstance(value, Mapping):
            return handler(value)
        name = cls._tag_in(value)
        try:
            member: type[Self] = cls.registry().get_or_raise(str(name))
        except ConfigError as error:
            wrong: str | PydanticCustomError = "missing"
            if name is not None:
                # Braces in the message would be placeholders.
                wrong = PydanticCustomError(cls.tag, "{message}", {"message": str(error)})
            details = InitErrorDetails(type=wrong, loc=(cls.tag,), input=name)
            raise ValidationError.from_exception_data(cls.__name__, [details]) from None
        return member.model_validate(value)


StrictModel = TypeVar("StrictModel", bound=Strict)
T = TypeVar("T")


def parse(value: dict[str, Any], kind: type[StrictModel], source: str) -> StrictModel:
    """Validate `value` as `kind`.

    Raises:
        ConfigError: one line per mistake, each with source, field, value and, for an unknown key, the
            nearest known one.
    """
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise ConfigError("\n".join(_explanations(error, kind, value, source))) from None


def parse_dataclass(value: dict[str, Any], kind: type[T], source: str) -> T:
    """Validate `value` as a dataclass that forbids extra keys. Raises ConfigError as `parse` does."""
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise ConfigError("\n".join(_explanations(error, kind, value, source))) from None
    except ConfigError as error:  # of the dataclass itself
        raise ConfigError(f"{source}: {error}") from None


def load(path: Path, kind: type[StrictModel]) -> StrictModel:
    """Read a YAML file and validate it as `kind`. Raises ConfigError as `read_yaml` and `parse` do."""
    return parse(read_yaml(path), kind, str(path))


def _explanations(error: ValidationError, kind: type[Any], value: Any, source: str) -> list[str]:
    """One line per mistake; a list that is too short only because of a mistake in its items is none."""
    mistakes = error.errors()
    wrong = {each["loc"][:end] for each in mistakes for end in range(len(each["loc"]))}
    own = [each for each in mistakes if each["type"] != "too_short" or each["loc"] not in wrong]
    return [_explain(mistake, kind, value, source) for mistake in own]


def _explain(mistake: Any, kind: type[Any], value: Any, source: str) -> str:
    where = ".".join(str(part) for part in mistake["loc"])
    if mistake["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        *parents, key = mistake["loc"]
        owner = _config_class_at(kind, value, parents)
        hint = owner.hint if hasattr(owner, "hint") else partial(nearest, known=_known_keys(owner))
        return f"{source}: unknown key '{where}'{hint(str(key))}"
    if mistake["type"] == "missing":
        return f"{source}: '{where}' is required"
    # A mistake inside a group names its fields; printing the whole group would bury it.
    given = "" if isinstance(mistake["input"], dict) else f" = {mistake['input']!r}"
    place = f"'{where}'{given}: " if where else ""
    return f"{source}: {place}{mistake['msg'].removeprefix('Value error, ')}"


def _config_class_at(kind: Any, value: Any, parents: list[Any]) -> Any:
    """Return the configuration class at `parents` of `value`, as far as annotations tell; None if unknown."""
    kind = _member(kind, value)
    for part in parents:
        field = getattr(kind, "model_fields", {}).get(part)
        if field is not None:
            kind = _config_class(field.annotation)
        elif not (isinstance(kind, type) and issubclass(kind, BaseModel)):
            return None
        value = value[part] if isinstance(value, (dict, list)) else None
        kind = _member(kind, value)
    return kind


def _member(kind: Any, value: Any) -> Any:
    """Return the class that validates `value` if `kind` is the base of a union."""
    return kind.class_for(value) if isinstance(kind, type) and issubclass(kind, Strict) else kind


def _known_keys(kind: Any) -> list[str]:
    return list(getattr(kind, "model_fields", getattr(kind, "__dataclass_fields__", {})))


def _config_class(annotation: Any) -> Any:
    """Return the configuration class inside Optional[…], list[…] or dict[…, …]; None if there is none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        found = _config_class(inner)
        if found is not None:
            return found
    return None
