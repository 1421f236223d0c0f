"""Replicates: training runs of one recipe that differ only by their seed, and the spread between them."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import stdev, variance

from evalsuite.reports.analysis.bootstrap_sample import BootstrapSample
from evalsuite.reports.analysis.lineage import lineage_of
from evalsuite.reports.analysis.result_tensor import ResultTensor
from evalsuite.reports.analysis.rows import AverageRow
from evalsuite.reports.statistics.contrasts import Contrast

ONE_RUN = "one run, documents only"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicates:
    """Checkpoints with the same recipe, mixers and token count, trained with several seeds."""

    checkpoints: tuple[int, ...]
    protocol: str
    scope: str
    """`informative`, or `all` where no benchmark of the protocol is informative."""
    mean: float
    """Mean of their recoveries."""
    deviation: float
    """Standard deviation of their recoveries over training runs."""


@dataclass(frozen=True, slots=True)
class RunSpread:
    """Variance of a score between training runs, pooled over recipes with two runs or more."""

    variance: float
    degrees: float
    """Runs − recipes, or as many as a stated spread is worth."""

    @property
    def method(self) -> str:
        """For the caption of an interval."""
        return f"documents and training runs (t, {self.degrees:g} degrees of freedom between runs)"


class Recipes:
    """The recipes of a report: which checkpoints are runs of the same one."""

    def __init__(self, tensor: ResultTensor) -> None:
        """Group the checkpoints."""
        self._families = replicate_families(tensor)
        self._teachers = [checkpoint.teacher for checkpoint in tensor.checkpoints]
        self._runs = {member: family for family in self._families for member in family}
        self._spreads: dict[tuple[BootstrapSample, int | None, int], RunSpread | None] = {}

    @property
    def families(self) -> tuple[tuple[int, ...], ...]:
        """The recipes with two runs or more."""
        return tuple(self._families)

    def runs(self, checkpoint: int) -> tuple[int, ...]:
        """All runs of a checkpoint's recipe, itself included."""
        return self._runs.get(checkpoint, (checkpoint,))

    def spread(self, data: BootstrapSample, teacher: int | None, offset: int = 0) -> RunSpread | None:
        """Spread of the averages of `data` between the runs of each recipe of `teacher`.

        Args:
            data: the strata of an average.
            teacher: index of the teacher.
            offset: from a checkpoint to its column.

        Returns:
            None if no recipe has two runs with scores in all strata of `data`.
        """
        key = (data, teacher, offset)
        if key not in self._spreads:
            levels = [
                [data.level(i + offset) for i in family if self._teachers[i] == teacher]
                for family in self._families
            ]
            self._spreads[key] = pooled_spread([[x for x in family if isfinite(x)] for family in levels])
        return self._spreads[key]

    def difference(
        self, data: BootstrapSample, first: int, second: int, columns: tuple[int, int] | None = None
    ) -> tuple[Contrast, str]:
        """Difference of two checkpoints and the method of its interval.

        For students of different recipes it contains the spread between training runs, if that is known.

        Args:
            data: the strata of an average.
            first: index of a checkpoint.
            second: index of another.
            columns: their columns; default: their indices.
        """
        one, other = columns or (first, second)
        contrast, method = data.difference(one, other), data.method({one: 1.0, other: -1.0})
        teachers = self._teachers[first], self._teachers[second]
        if self.are_replicates(first, second) or teachers[0] is None or teachers[0] != teachers[1]:
            return contrast, method
        spread = self.spread(data, teachers[0], one - first)
        if spread is None:
            return contrast, method
        rng = data.rng("runs", one, other)
        return contrast.with_noise(2 * spread.variance, spread.degrees, rng), f"{method}; {spread.method}"

    def are_replicates(self, first: int, second: int) -> bool:
        """Whether two checkpoints are runs of one recipe."""
        return second in self.runs(first)


def pooled_spread(recipes: Sequence[Sequence[float]]) -> RunSpread | None:
    """Pool the variance between runs, from one score per run of each recipe; None without repeated runs."""
    repeated = [runs for runs in recipes if len(runs) > 1]
    degrees = sum(len(runs) - 1 for runs in repeated)
    squares = sum((len(runs) - 1) * variance(runs) for runs in repeated)
    return RunSpread(squares / degrees, degrees) if degrees else None


def replicate_families(tensor: ResultTensor) -> list[tuple[int, ...]]:
    """Group the students of one teacher, recipe, mixers, stages and token count that have different seeds.

    Variants of a recipe without a name of their own have the recipe's: stages that differ in a rate, an
    objective or a length are no runs of one recipe.
    """
    families: dict[tuple[object, ...], list[int]] = {}
    for index, checkpoint in enumerate(tensor.checkpoints):
        lineage = lineage_of(checkpoint)
        if checkpoint.teacher is None or lineage.seed is None or not lineage.mixers or lineage.recipe is None:
            continue
        stages = tuple(stage.settings for stage in lineage.stages)
        key = (checkpoint.teacher, lineage.recipe, lineage.layers, stages, lineage.tokens)
        families.setdefault(key, []).append(index)
    found = []
    for members in families.values():
        seeds = {lineage_of(tensor.checkpoints[i]).seed for i in members}
        if len(members) > 1 and len(seeds) == len(members):
            found.append(tuple(members))
    return found


def replicates_of(tensor: ResultTensor, averages: Sequence[AverageRow]) -> list[Replicates]:
    """Mean and deviation per family of replicates and protocol, for families with complete averages."""
    found = []
    # A protocol's recoveries are compared over its informative benchmarks, if it has any.
    scopes = {row.protocol: "all" for row in averages}
    scopes |= {row.protocol: row.scope for row in averages if row.scope == "informative"}
    for members in replicate_families(tensor):
        for protocol, scope in scopes.items():
            points = [
                row.recovery.point
                for row in averages
                if row.checkpoint in members
                and (row.protocol, row.scope) == (protocol, scope)
                and not row.missing
            ]
            known = [point for point in points if point is not None]
            if len(known) == len(members):
                found.append(
                    Replicates(
                        checkpoints=members,
                        protocol=protocol,
                        scope=scope,
                        mean=sum(known) / len(known),
                        deviation=stdev(known),
                    )
                )
    return found
