"""The example package, installed into a temporary folder as pip installs it."""

import importlib
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from evalsuite.distill.optim.optimizers import OPTIMIZERS
from evalsuite.distill.optim.schedules import SCHEDULES
from evalsuite.distill.recipe.stage import OBJECTIVES
from evalsuite.distill.selection import SELECTORS
from evalsuite.foundation.registry import Registry
from evalsuite.models.decoder.families import FAMILIES
from evalsuite.models.engines import ENGINES
from evalsuite.models.mixers import MIXERS
from evalsuite.protocols.scorers import SCORERS
from evalsuite.reports import measures
from evalsuite.reports.measure import MEASURES
from evalsuite.tasks.benchmark import BENCHMARKS
from evalsuite.tasks.generator import GENERATORS
from evalsuite.tasks.samplers import SAMPLERS
from evalsuite.tasks.sources.transforms import TRANSFORMS

PACKAGE = Path(__file__).parent / "package"
assert measures  # registers those of evalsuite
REGISTRIES: tuple[Registry, ...] = (
    MIXERS, OBJECTIVES, SCHEDULES, OPTIMIZERS, SELECTORS, FAMILIES, ENGINES, SCORERS, BENCHMARKS,
    TRANSFORMS, GENERATORS, SAMPLERS, MEASURES,
)  # fmt: skip
"""Registries that other packages extend."""

EntryPoints = Mapping[str, Mapping[str, str]]
"""Group → name → "module:attribute"."""
Install = Callable[..., None]


def write_distribution(site: Path, name: str, version: str, points: EntryPoints) -> None:
    """Write the metadata of an installed distribution."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [
        line
        for group, members in points.items()
        for line in (f"[{group}]", *(f"{key} = {value}" for key, value in members.items()), "")
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))


def _forget() -> None:
    """Look for plugins again."""
    importlib.invalidate_caches()
    for registry in REGISTRIES:
        registry._plugins = None
        registry._loaded.clear()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a distribution: its name, its entry points, and the source of its modules by name."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    installed: set[str] = set()

    def add(name: str, points: EntryPoints, modules: Mapping[str, str] | None = None) -> None:
        write_distribution(site, name, "1.0", points)
        for module, source in (modules or {}).items():
            (site / f"{module}.py").write_text(source)
            installed.add(module)
        _forget()

    yield add
    for module in list(sys.modules):
        if module.split(".")[0] in installed:
            del sys.modules[module]
    monkeypatch.undo()
    _forget()


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install the example package; its folder of installed packages."""
    site = tmp_path / "example-site"
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    shutil.copytree(PACKAGE / "evalsuite_example", site / "evalsuite_example")
    write_distribution(site, project["name"], project["version"], project["entry-points"])
    monkeypatch.syspath_prepend(site)
    _forget()
    yield site
    for module in [each for each in sys.modules if each.split(".")[0] == "evalsuite_example"]:
        del sys.modules[module]
    monkeypatch.undo()
    _forget()
