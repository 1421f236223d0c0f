"""One typed registry for every extension point.

An extension is one definition and one registration: a definition inside evalsuite registers itself when its
module is imported; one of another package is found by entry point and imported when its name is first used,
so that a broken plugin never stops a run that does not use it.

    MIXERS: Registry[type[Mixer]] = Registry("mixer", group="evalsuite.mixers")

    @MIXERS.register("gla")
    class GLA(Mixer): ...

A plugin's module states the version of this interface that it was written for, `EVALSUITE_API = 1`, and its
`pyproject.toml` names the definition:

    [project.entry-points."evalsuite.mixers"]
    my_mixer = "my_package.my_module:MyMixer"
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pkgutil import iter_modules
from typing import Any, Generic, TypeVar

from evalsuite.foundation.errors import ConfigError, nearest

API_VERSION = 1
"""Version of the interface between evalsuite and plugins; a plugin of another version is refused."""

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class _Deferred:
    """A definition that is read when its name is first used."""

    load: Callable[[], Any]


class Registry(Generic[T], Mapping[str, T]):
    """Definitions of one kind by name, in order of registration; plugins follow, by name.

    A mapping: `registry[name]` imports a plugin if need be. Iterating over the items imports all plugins, so
    listings use `names` and `problem`, which tells why a plugin cannot be used.

    Args:
        kind: what it holds, for messages, e.g. "mixer".
        group: entry-point group of other packages' definitions; None if only evalsuite defines them.
        validate: turns a plugin's object into a definition; raises ConfigError or TypeError if it is none.
    """

    def __init__(
        self,
        kind: str,
        *,
        group: str | None = None,
        validate: Callable[[T], T] | None = None,
    ) -> None:
        self.kind = kind
        self.group = group
        self._validate = validate
        self._items: dict[str, T | _Deferred] = {}
        self._plugins: dict[str, list[EntryPoint]] | None = None
        self._loaded: dict[str, T] = {}

    def register(self, name: str) -> Callable[[U], U]:
        """Register the decorated class or function under `name`. Raises ValueError if the name is taken."""

        def decorate(item: U) -> U:
            self.add(name, item)  # type: ignore[arg-type]
            return item

        return decorate

    def add(self, name: str, item: T) -> T:
        """Register `item` under `name` and return it. Raises ValueError if the name is taken."""
        if name in self._items:
            raise ValueError(f"{self.kind} '{name}' is registered twice")
        self._items[name] = item
        return item

    def defer(self, name: str, load: Callable[[], T]) -> None:
        """Register what `load` returns, which is called when `name` is first used."""
        self.add(name, _Deferred(load))  # type: ignore[arg-type]

    def get_or_raise(self, name: str, where: str = "") -> T:
        """Return a definition; import it if it is a plugin's.

        Args:
            name: its name.
            where: file and field that name it, for the message.

        Raises:
            ConfigError: no such name (with the nearest known one), or a plugin that cannot be used.
        """
        place = f"{where}: " if where else ""
        if name in self._items:
            own = self._items[name]
            if isinstance(own, _Deferred):
                own = self._items[name] = own.load()
            return own
        if name in self._loaded:
            return self._loaded[name]
        candidates = self._entry_points().get(name)
        if candidates is None:
            raise ConfigError(f"{place}unknown {self.kind} '{name}'{nearest(name, self)}")
        try:
            item = self._load(name, candidates)
        except ConfigError as error:
            raise ConfigError(f"{place}{error}") from error
        self._loaded[name] = item
        return item

    def problem(self, name: str) -> str | None:
        """Why the plugin `name` cannot be used, or None if it can. Imports it."""
        plugins = self._entry_points().get(name)
        if plugins and name in self._items:
            return f"{self.kind} '{name}' of {_packages(plugins)} is ignored: evalsuite has its own"
        try:
            self.get_or_raise(name)
        except ConfigError as error:
            return str(error)
        return None

    def origin(self, name: str) -> str:
        """Package that defines `name`: "evalsuite" or a plugin's distribution and version."""
        return "evalsuite" if name in self._items else _packages(self._entry_points()[name])

    def names(self) -> tuple[str, ...]:
        """All names, without importing any plugin."""
        return tuple(self)

    def is_usable(self, name: str) -> bool:
        """Whether a definition is evalsuite's, or a plugin's that can be imported."""
        return name in self._items or self.problem(name) is None

    def __getitem__(self, name: str) -> T:
        if name not in self:
            raise KeyError(name)
        return self.get_or_raise(name)

    def __contains__(self, name: object) -> bool:
        return name in self._items or name in self._entry_points()

    def __iter__(self) -> Iterator[str]:
        yield from self._items
        yield from sorted(name for name in self._entry_points() if name not in self._items)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _entry_points(self) -> dict[str, list[EntryPoint]]:
        if self._plugins is None:
            self._plugins = {}
            for found in entry_points(group=self.group) if self.group else ():
                self._plugins.setdefault(found.name, []).append(found)
        return self._plugins

    def _load(self, name: str, candidates: list[EntryPoint]) -> T:
        packages = _packages(candidates)
        if len(candidates) > 1:
            raise ConfigError(f"{self.kind} '{name}' is defined by {packages}; uninstall all but one")
        point = candidates[0]
        try:
            item: T = point.load()
        except Exception as error:  # whatever a foreign module raises while it is imported
            raise ConfigError(
                f"{self.kind} '{name}' of {packages} cannot be imported from '{point.value}' "
                f"({type(error).__name__}: {error}); repair or uninstall {packages}"
            ) from error
        version = getattr(sys.modules[point.module], "EVALSUITE_API", None)
        if version != API_VERSION:
            found = "states no EVALSUITE_API" if version is None else f"was written for interface {version}"
            raise ConfigError(
                f"{self.kind} '{name}' of {packages}: {point.module} {found}, this evalsuite has interface "
                f"{API_VERSION}; install a version of {packages} for it"
            )
        if self._validate is None:
            return item
        try:
            return self._validate(item)
        except (TypeError, ValueError, ConfigError) as error:
            raise ConfigError(f"'{name}' of {packages} is no {self.kind}: {error}") from error


class ClassRegistry(Registry[type[T]]):
    """A registry of classes, each of which learns its name as the attribute `name`."""

    def add(self, name: str, item: type[T]) -> type[T]:
        """Register `item` under `name` and return it. Raises ValueError if the name is taken."""
        super().add(name, item)
        item.name = name  # type: ignore[attr-defined]
        return item

    def _load(self, name: str, candidates: list[EntryPoint]) -> type[T]:
        item = super()._load(name, candidates)
        item.name = name  # type: ignore[attr-defined]
        return item


def subclass_of(base: type) -> Callable[[Any], Any]:
    """A `validate` that accepts classes derived from `base`."""

    def validate(item: Any) -> Any:
        if not (isinstance(item, type) and issubclass(item, base)):
            raise TypeError(f"it must be a class derived from {base.__module__}.{base.__name__}")
        return item

    return validate


def plugin_origin(registry: Registry[Any], name: str) -> str:
    """Return the package of a plugin, in brackets; "" for a definition of evalsuite."""
    origin = registry.origin(name)
    return "" if origin == "evalsuite" else f" [{origin}]"


def import_submodules(package: str, path: Iterable[str]) -> None:
    """Import every module of a package, so that its definitions register themselves.

    Args:
        package: its `__name__`.
        path: its `__path__`.
    """
    for module in iter_modules(path):
        import_module(f"{package}.{module.name}")


def _packages(points: list[EntryPoint]) -> str:
    known = [f"{point.dist.name} {point.dist.version}" if point.dist else point.value for point in points]
    return " and ".join(sorted(known))
