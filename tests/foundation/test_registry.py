"""The registry of extension points: names, plugins and what is wrong with them."""

import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest

from evalsuite.foundation import ConfigError, registry
from evalsuite.foundation.registry import API_VERSION, Registry

GROUP = "evalsuite.tests"


def is_callable(item: object) -> object:
    if not callable(item):
        raise TypeError("it cannot be called")
    return item


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Offer an attribute of a module as an entry point."""
    points: list[EntryPoint] = []
    monkeypatch.setattr(registry, "entry_points", lambda group: [p for p in points if p.group == group])

    def offer(
        name: str, item: object, *, version: int | None = API_VERSION, module: str = "plugin_a"
    ) -> None:
        found = ModuleType(module)
        found.item = item  # type: ignore[attr-defined]
        if version is not None:
            found.EVALSUITE_API = version  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module, found)
        points.append(EntryPoint(name, f"{module}:item", GROUP))

    return offer


def test_registered_definitions_keep_their_order() -> None:
    things: Registry[object] = Registry("thing")

    @things.register("b")
    def b() -> None: ...

    things.add("a", 1)
    assert things.names() == ("b", "a")
    assert things["b"] is b
    assert things.origin("a") == "evalsuite"
    with pytest.raises(ValueError, match="thing 'a' is registered twice"):
        things.add("a", 2)


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    things: Registry[int] = Registry("thing")
    things.add("gla", 1)
    with pytest.raises(ConfigError, match=r"recipe.yaml: unknown thing 'gal'.*'gla'"):
        things.get_or_raise("gal", "recipe.yaml")
    with pytest.raises(KeyError):
        things["gal"]


def test_a_plugin_is_found_by_entry_point(plugin: Callable[..., None]) -> None:
    plugin("mine", len)
    things: Registry[object] = Registry("thing", group=GROUP, validate=is_callable)
    things.add("ours", max)
    assert list(things) == ["ours", "mine"]
    assert things["mine"] is len
    assert things.problem("mine") is None
    assert things.origin("mine") == "plugin_a:item"


@pytest.mark.parametrize(
    ("version", "message"), [(None, "states no EVALSUITE_API"), (API_VERSION + 1, "written for interface 2")]
)
def test_a_plugin_of_another_version_is_refused(
    plugin: Callable[..., None], version: int | None, message: str
) -> None:
    plugin("mine", len, version=version)
    with pytest.raises(ConfigError, match=message):
        Registry("thing", group=GROUP).get_or_raise("mine")


def test_a_broken_plugin_stops_only_who_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("broken", "no_such_package.module:item", GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    things: Registry[int] = Registry("thing", group=GROUP)
    things.add("ours", 1)
    assert things.names() == ("ours", "broken")
    assert things["ours"] == 1
    with pytest.raises(ConfigError, match=r"cannot be imported from 'no_such_package\.module:item'"):
        things.get_or_raise("broken")
    assert "repair or uninstall" in (things.problem("broken") or "")


def test_two_plugins_of_one_name_are_both_named(plugin: Callable[..., None]) -> None:
    plugin("mine", len)
    plugin("mine", max, module="plugin_b")
    with pytest.raises(
        ConfigError, match="defined by plugin_a:item and plugin_b:item; uninstall all but one"
    ):
        Registry("thing", group=GROUP).get_or_raise("mine")


def test_a_plugin_cannot_replace_a_built_in_definition(plugin: Callable[..., None]) -> None:
    plugin("ours", len)
    things: Registry[object] = Registry("thing", group=GROUP)
    things.add("ours", max)
    assert things["ours"] is max
    assert "is ignored: evalsuite has its own" in (things.problem("ours") or "")


def test_an_object_of_another_kind_is_refused(plugin: Callable[..., None]) -> None:
    plugin("mine", 3)
    with pytest.raises(ConfigError, match="'mine' of plugin_a:item is no thing: it cannot be called"):
        Registry("thing", group=GROUP, validate=is_callable).get_or_raise("mine")


def test_the_packages_own_metadata_is_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution on sys.path is found as pip installs it."""
    info = tmp_path / "evalsuite_plugin-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evalsuite-plugin\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\nmine = plugin_module:item\n")
    (tmp_path / "plugin_module.py").write_text(f"EVALSUITE_API = {API_VERSION}\nitem = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    things: Registry[int] = Registry("thing", group=GROUP)
    assert things["mine"] == 7
    assert things.origin("mine") == "evalsuite-plugin 1.2"
