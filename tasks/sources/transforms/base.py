"""What a row transform is, and the registry of transforms."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from evalsuite.foundation import ConfigError, nearest
from evalsuite.foundation.registry import Registry
from evalsuite.tasks.benchmark import SplitRef
from evalsuite.tasks.generator import Row, checked_rows
from evalsuite.tasks.sources.data import DataSource


@dataclass(frozen=True, slots=True)
class Transform:
    """Turns the rows of a dataset into questions."""

    function: Callable[..., list[Row]]
    """(rows, data source, **transform_args) → rows."""
    inputs: tuple[SplitRef, ...] = ()
    """Further splits that it reads from the data source."""

    def __call__(
        self, rows: list[Row], data: DataSource, arguments: Mapping[str, Any], where: str
    ) -> list[Row]:
        """Return the questions.

        Raises:
            ConfigError: an argument that the transform does not take.
            DataError: the transform fails, or returns something else.
        """
        known = list(inspect.signature(self.function).parameters)[2:]
        for name in arguments:
            if name not in known:
                raise ConfigError(f"{where}: unknown key 'transform_args.{name}'{nearest(name, known)}")
        return checked_rows(partial(self.function, rows, data, **arguments), where)


def _as_transform(item: Any) -> Transform:
    if isinstance(item, Transform):
        return item
    if not callable(item):
        raise TypeError(f"{item!r} is neither a Transform nor a function of (rows, data)")
    inspect.signature(item).bind([], None)
    return Transform(item)


TRANSFORMS: Registry[Transform] = Registry("transform", group="evalsuite.transforms", validate=_as_transform)
"""Key `transform` of a benchmark's source → transform."""
