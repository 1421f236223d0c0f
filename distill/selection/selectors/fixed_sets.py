"""`uniform` and `fixed`: sets of layers without measurements."""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from evalsuite.distill.selection.result import SelectionResult
from evalsuite.distill.selection.selector import GENDISTILL, KL_GUIDED, SELECTORS, Requirement, Selector
from evalsuite.foundation import ConfigError, nearest
from evalsuite.foundation.strict import Strict, parse
from evalsuite.foundation.strict_yaml import read_yaml

if TYPE_CHECKING:
    from evalsuite.distill.selection.context import SelectionContext

FILE = Path(__file__).with_name("published_sets.yaml")


class PublishedSets(Strict):
    """Published layer sets of one selector for one teacher."""

    teacher: str
    layers: int = Field(gt=0)
    """Number of layers of that teacher."""
    source: str
    sets: dict[int, list[int]]
    """Budget → layers, from 0."""


@cache
def published_sets() -> dict[str, PublishedSets]:
    """Name → published sets."""
    return {name: parse(value, PublishedSets, f"{FILE}: {name}") for name, value in read_yaml(FILE).items()}


def uniform_layers(layers: int, k: int) -> tuple[int, ...]:
    """Layer ⌊i · L / K⌋ for i = 0 … K − 1: the first layer of each of K parts of equal size.

    Distances differ by at most one, for every K from 1 to L. The papers describe the idea ("one roughly
    every ⌊L/K⌋ blocks", KL-guided selection, section 4.2; "spaced at equal intervals", arXiv 2603.26556,
    Appendix D), but no single rule gives their sets. This rule gives the published sets of 25, 33 and 50 %
    for L = 36 (K = 9, 12, 18) and of K = 9 for L = 28. It differs for

    - L = 28, K = 5: {0, 6, 11, 16, 21} in Table 11 of arXiv 2603.26556, {0, 5, 11, 16, 22} here;
    - L = 28, K = 7: {0, 5, 9, 13, 17, 21, 25} there, {0, 4, 8, 12, 16, 20, 24} here; the configurations of
      KL-guided selection take the last layer of each part, {3, 7, …, 27}, also for K = 4 and 14;
    - L = 36, K = 5: {0, 8, 16, 24, 32} there, a fixed distance of 8, {0, 7, 14, 21, 28} here.

    All of these are available as `fixed` sets.
    """
    return tuple(i * layers // k for i in range(k))


@SELECTORS.register("uniform")
class Uniform(Selector):
    """Evenly spaced layers."""

    source: ClassVar[str] = f"{KL_GUIDED}, section 4.2 (1); {GENDISTILL}, Appendix D"
    requires: ClassVar[Requirement] = "nothing"

    def select(self, context: "SelectionContext", k: int) -> SelectionResult:
        return SelectionResult(layers=uniform_layers(context.layers, k))


@SELECTORS.register("fixed")
class Fixed(Selector):
    """A published set (--option set=NAME) or an explicit list (--option layers=[…])."""

    source: ClassVar[str] = f"{GENDISTILL}, Table 11; PostNAS, arXiv 2508.15884; {KL_GUIDED}"
    requires: ClassVar[Requirement] = "nothing"

    set: str | None = None
    """Name of a published set."""
    layers: list[int] | None = None
    """Explicit list of layers."""

    def select(self, context: "SelectionContext", k: int) -> SelectionResult:
        """The published set at this budget, or the list.

        Raises:
            ConfigError: neither or both, an unknown name, an unpublished budget, a set for another number of
                layers, or an invalid list.
        """
        if self.set is not None and self.layers is None:
            return self._published(self.set, context.layers, k)
        if self.layers is None or self.set is not None:
            raise ConfigError(
                "selector fixed: give a published set (--option set=NAME) or layers (--option layers=[2,5]); "
                f"sets: {', '.join(published_sets())}"
            )
        layers = tuple(sorted(set(self.layers)))
        if invalid := [layer for layer in layers if not 0 <= layer < context.layers]:
            raise ConfigError(
                f"selector fixed: the teacher has layers 0 to {context.layers - 1}, not {invalid}"
            )
        if len(layers) != k:
            raise ConfigError(f"selector fixed: {len(layers)} different layers for a budget of {k}")
        return SelectionResult(layers=layers, details={"source": "given"})

    def _published(self, name: str, layers: int, k: int) -> SelectionResult:
        if name not in published_sets():
            raise ConfigError(f"selector fixed: unknown set '{name}'{nearest(name, published_sets())}")
        found = published_sets()[name]
        if found.layers != layers:
            raise ConfigError(
                f"selector fixed: '{name}' is for the {found.layers} layers of {found.teacher}, "
                f"this teacher has {layers}"
            )
        if k not in found.sets:
            raise ConfigError(
                f"selector fixed: '{name}' has no set of {k} layers; budgets: "
                f"{', '.join(map(str, found.sets))}"
            )
        return SelectionResult(layers=tuple(found.sets[k]), details={"source": found.source})
