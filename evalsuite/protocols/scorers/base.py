"""What a scorer is, and the registry of scorers."""

import importlib.util
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from evalsuite.foundation import ConfigError, MissingDependencyError, content_hash
from evalsuite.foundation.registry import Registry
from evalsuite.models.checkpoints.fingerprint import source_hash


@dataclass(frozen=True, slots=True)
class ScorerOutput:
    """Values per metric, the extracted answer ("" for none), and the target."""

    values: Mapping[str, float]
    extracted: str
    target: str


ScoreFunction = Callable[[Mapping[str, Any], str], ScorerOutput]
"""(row of the document, response) → output."""


@dataclass(frozen=True, slots=True)
class Scorer:
    """Scores a generated response against the row of its document.

    A scorer owns its version: scores are computed again when it changes.
    """

    function: ScoreFunction
    modules: tuple[ModuleType, ...] = ()
    """Further modules whose code decides the values; the function's own module always counts."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Optional packages that the function imports: name of the import → what pip installs."""

    def __call__(self, row: Mapping[str, Any], response: str) -> ScorerOutput:
        """Score one response. Raises ConfigError if the function returns something else."""
        output = self.function(row, response)
        if not isinstance(output, ScorerOutput):
            raise ConfigError(
                f"scorer {_name(self.function)} returned {type(output).__name__}; it must return ScorerOutput"
            )
        return output

    @property
    def version(self) -> str:
        """Hash of the code (without comments and docstrings) and packages that decide the values.

        Raises:
            ConfigError: the source of the function is not in a file.
        """
        files = [_file(self.function), *(_file(module) for module in self.modules)]
        sources = [source_hash(file.name, root=file.parent) for file in files]
        return content_hash([sources, {name: _installed(name) for name in self.packages}], 12)

    def describe(self) -> str:
        """The docstring of the function, or of the metric that a partial applies."""
        function: Any = self.function
        if isinstance(function, partial):
            function = next((each for each in function.args if callable(each)), function.func)
        return str(function.__doc__ or "")

    def check_packages(self, where: str) -> None:
        """Raise MissingDependencyError, which begins with `where`, if a package is not installed."""
        for name, requirement in self.packages.items():
            if importlib.util.find_spec(name) is None:
                raise MissingDependencyError(
                    f"{where}: needs the package {name}, which is not installed; `pip install {requirement}`"
                )


def as_scorer(item: Any) -> Scorer:
    """Return a plugin's `Scorer`, or its function as one. Raises TypeError for anything else."""
    if isinstance(item, Scorer):
        return item
    if not callable(item):
        raise TypeError(f"{item!r} is neither a Scorer nor a function of (row, response)")
    inspect.signature(item).bind({}, "")
    return Scorer(item)


SCORERS: Registry[Scorer] = Registry("scorer", group="evalsuite.scorers", validate=as_scorer)
"""Key `scorer` of a benchmark's generation block → scorer."""


def _file(item: ModuleType | ScoreFunction) -> Path:
    while isinstance(item, partial):
        item = item.func
    try:
        return Path(inspect.getsourcefile(item) or "")
    except TypeError:
        raise ConfigError(
            f"scorer {_name(item)}: its source is in no file, so that no change of it would be noticed; "
            "define it in a module"
        ) from None


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _name(item: Any) -> str:
    return str(getattr(item, "__qualname__", item))
