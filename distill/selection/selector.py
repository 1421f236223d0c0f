"""Selectors: methods that choose the layers, or heads, that stay softmax, and their registry.

A selector is one subclass of `Selector`: its fields are its options, and `select` chooses the layers. Its
module imports torch inside functions only, since selectors are also listed without torch.

    @SELECTORS.register("uniform")
    class Uniform(Selector):
        source: ClassVar[str] = "KL-guided selection, ICLR 2026, section 4.2 (1)"
        requires: ClassVar[Requirement] = "nothing"

A selector of another package is an entry point in the group `evalsuite.selectors` that names the class.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from evalsuite.distill.selection.options import ContextOptions
from evalsuite.foundation import ConfigError, nearest
from evalsuite.foundation.registry import ClassRegistry, subclass_of
from evalsuite.foundation.strict import parse
from evalsuite.foundation.strict_yaml import parse_yaml

if TYPE_CHECKING:
    from evalsuite.distill.selection.context import SelectionContext
    from evalsuite.distill.selection.result import SelectionResult

KL_GUIDED = "KL-guided selection, ICLR 2026"
GENDISTILL = "arXiv 2603.26556"

Requirement = Literal["nothing", "teacher", "all_linear", "training"]
"""What a selector measures with: an all-linear student, or candidates that it trains."""
Unit = Literal["layer", "head"]
"""What a selector selects."""
Start = Literal["all-linear", "teacher"]
"""The student that a search starts from."""
REQUIREMENTS: tuple[Requirement, ...] = get_args(Requirement)


class Selector(ContextOptions):
    """A method that selects the layers that stay softmax; its fields are its options."""

    name: ClassVar[str]
    """Its name in the registry."""
    source: ClassVar[str]
    """The paper that it comes from."""
    requires: ClassVar[Requirement]
    unit: ClassVar[Unit] = "layer"

    @classmethod
    def title(cls) -> str:
        """The first paragraph of its docstring, on one line without the full stop."""
        return " ".join((cls.__doc__ or "").split("\n\n")[0].split()).removesuffix(".")

    @classmethod
    def hint(cls, key: str) -> str:
        """For an unknown option: the selectors that have it, or the nearest option of this one."""
        own = (name for name in SELECTORS if SELECTORS.origin(name) == "evalsuite")
        owners = [name for name in own if key in SELECTORS[name].model_fields]
        if not owners:
            return nearest(key, cls.model_fields)
        return f": it is an option of {', '.join(owners)}"

    @abstractmethod
    def select(self, context: "SelectionContext", k: int) -> "SelectionResult":
        """Select K layers, or heads, of the context's teacher."""


SELECTORS: ClassRegistry[Selector] = ClassRegistry(
    "selector", group="evalsuite.selectors", validate=subclass_of(Selector)
)
"""Name → selector."""


def load_selector(
    name: str, settings: Iterable[str] = (), defaults: Mapping[str, Any] = MappingProxyType({})
) -> Selector:
    """Return the selector `name` with options from `key=value` settings; values are YAML.

    Args:
        settings: take the place of `defaults`.
        defaults: options of a recipe's `selection`.

    Raises:
        ConfigError: an unknown selector, no `=`, an unknown option (with the nearest known one), or an
            invalid value.
    """
    kind = SELECTORS.get_or_raise(name)
    values: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        key = key.strip()
        if not equals:
            raise ConfigError(f"--option {setting}: expected key=value")
        if key in values:
            raise ConfigError(f"--option {setting}: '{key}' is given twice")
        values[key] = parse_yaml(value, f"--option {setting}")
    return parse({**defaults, **values}, kind, "--option" if values else "selection.options")
