"""Scopes: which benchmarks an average is over, and with which weights."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evalsuite.foundation import content_hash
from evalsuite.reports.panel import Cell, Panel
from evalsuite.reports.resampled import Resampled
from evalsuite.reports.run_folder import CATEGORIES
from evalsuite.reports.statistics.bootstrap import DRAWS, Stratum, collapse

ALL = "all"


@dataclass(frozen=True, slots=True)
class Scope:
    """An average over some cells of one protocol."""

    name: str
    """`all`, or a category."""
    protocol: str
    cells: tuple[int, ...]
    """Indices into the cells of a `Pool`."""
    weights: tuple[float, ...]
    """One per cell, adding to 1: benchmarks count alike (a group as one), contexts share a benchmark."""


class Pool:
    """The cells of one protocol whose scores can be averaged, resampled once for all averages.

    Columns are all subjects in order, then the chance level.
    """

    def __init__(self, panel: Panel, protocol: str, draws: int = DRAWS) -> None:
        """Resample the cells of `protocol` that are not perplexities and have at least two documents."""
        self.panel = panel
        self.protocol = protocol
        self.cells = [
            cell
            for cell in panel.cells
            if cell.protocol == protocol and not cell.is_perplexity and len(cell.documents) > 1
        ]
        self.chance = len(panel.subjects)
        self.strata = [stratum_of(cell, len(panel.subjects)) for cell in self.cells]
        self.data: Resampled | None = None
        if self.cells:
            seed = int(content_hash([cell.key for cell in self.cells]), 16)
            rng = np.random.default_rng(seed)
            self.data = Resampled(self.strata, [1.0] * len(self.strata), rng, draws=draws)

    def scopes(self) -> list[Scope]:
        """The average over everything, then over each category that has benchmarks."""
        found = [self.scope(ALL, range(len(self.cells)))]
        for category in CATEGORIES:
            chosen = [i for i, cell in enumerate(self.cells) if cell.benchmark.category == category]
            found += [self.scope(category, chosen)] if chosen else []
        return found

    def scope(self, name: str, cells: Sequence[int]) -> Scope:
        """An average over the given cells."""
        return Scope(name, self.protocol, tuple(cells), tuple(weights_of([self.cells[i] for i in cells])))

    def of(self, scope: Scope, subjects: Sequence[int]) -> Resampled | None:
        """The data of the cells of `scope` that all of `subjects` answered; None if there are none."""
        answered = [i for i in scope.cells if all(subject in self.cells[i].present for subject in subjects)]
        if not answered or self.data is None:
            return None
        return self.data.only(answered, weights_of([self.cells[i] for i in answered]))


def weights_of(cells: Sequence[Cell]) -> list[float]:
    """Weights that add to 1: every benchmark or group alike, split evenly down to benchmark and context."""
    units: dict[str, dict[str, int]] = {}
    for cell in cells:
        members = units.setdefault(cell.benchmark.group or cell.benchmark.name, {})
        members[cell.benchmark.name] = members.get(cell.benchmark.name, 0) + 1
    weights = []
    for cell in cells:
        members = units[cell.benchmark.group or cell.benchmark.name]
        weights.append(1 / len(units) / len(members) / members[cell.benchmark.name])
    return weights


def stratum_of(cell: Cell, subjects: int) -> Stratum:
    """Columns: all subjects (NaN for those that did not answer), then the chance level (NaN if unknown)."""
    rows = np.full((subjects + 1, len(cell.documents)), np.nan)
    rows[list(cell.present)] = cell.scores()
    if cell.chance is not None:
        rows[subjects] = cell.chance
    variance = np.zeros(subjects + 1)
    if len(cell.seeds) > 1:
        variance[list(cell.present)] = cell.seed_variance()
    return collapse(rows.T, variance)
