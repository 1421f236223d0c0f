"""`fixed`: a list of layers that somebody else chose."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pydantic import Field

from evalsuite.foundation import ConfigError, nearest
from evalsuite.foundation.strict import Strict, parse, read_yaml

FILE = Path(__file__).with_name("published.yaml")


class PublishedSets(Strict):
    """Layer sets of one selector for one teacher, as published."""

    teacher: str
    layers: int = Field(gt=0)
    """Layers of that teacher."""
    source: str
    sets: dict[int, list[int]]
    """Budget → layers, from 0."""


@cache
def published() -> dict[str, PublishedSets]:
    """Name → sets that ship with evalsuite."""
    return {name: parse(value, PublishedSets, f"{FILE}: {name}") for name, value in read_yaml(FILE).items()}


def fixed_layers(layers: int, k: int, *, named: str | None, given: Sequence[int] | None) -> tuple[int, ...]:
    """The published set `named` at this budget, or the list `given`.

    Raises:
        ConfigError: neither or both, an unknown name, a budget that is not printed, a set for another
            depth, or a list that does not fit.
    """
    if (named is None) == (given is None):
        raise ConfigError(
            "selector fixed: name a published set (--option set=NAME) or layers (--option layers=[2,5]); "
            f"sets: {', '.join(published())}"
        )
    if named is not None:
        if named not in published():
            raise ConfigError(f"selector fixed: unknown set '{named}'{nearest(named, published())}")
        found = published()[named]
        if found.layers != layers:
            raise ConfigError(
                f"selector fixed: '{named}' is for the {found.layers} layers of {found.teacher}, "
                f"this teacher has {layers}"
            )
        if k not in found.sets:
            raise ConfigError(
                f"selector fixed: '{named}' has no set of {k} layers; budgets: "
                f"{', '.join(map(str, found.sets))}"
            )
        return tuple(found.sets[k])
    assert given is not None
    chosen = tuple(sorted(set(given)))
    beyond = [layer for layer in chosen if not 0 <= layer < layers]
    if beyond:
        raise ConfigError(f"selector fixed: the teacher has layers 0 to {layers - 1}, not {beyond}")
    if len(chosen) != k:
        raise ConfigError(f"selector fixed: {len(chosen)} different layers were given for a budget of {k}")
    return chosen
