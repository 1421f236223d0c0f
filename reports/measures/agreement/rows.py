"""Agreement with the teacher: the same choice, right answers retained, flips, Cohen's κ and their ceiling.

- *Agreement*: share of documents on which the choice with the highest summed log-probability is the
  teacher's. Under generation: of the documents on which the teacher names an answer, the share with the same
  extracted answer; two right answers are the same. *Scored agreement* compares the choices that the metric
  picks.
- *Retained*: share of the teacher's right answers that stay right. *Lost* and *gained*: share of all
  documents that only the teacher, or only the student, has right.
- κ: agreement beyond that of independent choices with the same frequencies.
- *Ceiling*: the same measures between two training runs of one recipe.

Averages are macro averages of the benchmarks, weighted as every other. Intervals resample documents, or
their clusters, as everywhere (`evalsuite.reports.statistics.bootstrap`). Benchmarks with one choice, with
fractional scores, or whose responses are texts as a whole have no agreement under that protocol.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np

from evalsuite.foundation import content_hash
from evalsuite.reports.analysis.bootstrap_sample import BootstrapSample, Estimate, ResampledStratum
from evalsuite.reports.analysis.cells import Cell
from evalsuite.reports.analysis.flips import (
    BASES,
    FLIPS,
    Flip,
    Reference,
)
from evalsuite.reports.analysis.replicates import ONE_RUN, Recipes
from evalsuite.reports.analysis.result_tensor import ResultTensor
from evalsuite.reports.analysis.scopes import ALL, INFORMATIVE, scopes_of, weights_of
from evalsuite.reports.statistics.bootstrap import Stratum
from evalsuite.reports.statistics.contrasts import Contrast
from evalsuite.reports.statistics.paired import few_discordant
from evalsuite.reports.statistics.seeds import seed_effect

METHODS = {True: "bootstrap over documents", False: "bootstrap over clusters of documents"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreementRow:
    """A student and its teacher in one scope or benchmark under one protocol; shares are fractions."""

    checkpoint: int
    reference: int
    """Index of the teacher; in `AgreementRows.ceilings`, of another run of the same recipe."""
    protocol: str
    scope: str
    """`all`, `informative`, a category, or the name of a benchmark."""
    context: int | None = None
    """Of a benchmark with contexts; None for the average over them."""
    benchmarks: tuple[str, ...]
    """Benchmarks on which choices or extracted answers can be compared."""
    benchmarks_with_flips: tuple[str, ...]
    """Benchmarks with right and wrong answers."""
    documents: int
    """Documents of `benchmarks` and `benchmarks_with_flips`."""
    agreement: Estimate
    scored_agreement: Estimate
    kappa: Estimate
    retained: Estimate
    lost: Estimate
    gained: Estimate
    runs: tuple[int, ...] = ()
    """Training runs of the recipe with the same benchmarks, the checkpoint included."""
    recipe_agreement: Estimate = field(default_factory=lambda: Estimate(None, "not an average"))
    """In averages over scopes: mean agreement of `runs`, with an interval over documents and training runs
    where any recipe of the teacher has several, else its method is `one run, documents only`."""
    recipe_retained: Estimate = field(default_factory=lambda: Estimate(None, "not an average"))


class AgreementPool:
    """The flips of all cells of a protocol against one reference, each cell resampled once.

    A column holds one measure of one checkpoint. Draws depend on the documents alone, so that measures of two
    checkpoints are paired.
    """

    def __init__(
        self, tensor: ResultTensor, protocol: str, reference: int, members: Sequence[int] | None = None
    ) -> None:
        """Resample the cells of `protocol` that have the reference.

        Args:
            tensor: the results.
            protocol: `loglikelihood` or `generation`.
            reference: index of the teacher, or of another checkpoint.
            members: the checkpoints to compare; default: the students of the teacher `reference`.
        """
        self.tensor = tensor
        self.protocol = protocol
        self.reference = reference
        self.members = (
            tuple(i for i, each in enumerate(tensor.checkpoints) if each.teacher == reference)
            if members is None
            else tuple(members)
        )
        self.cells = [
            cell
            for cell in tensor.cells
            if cell.protocol == protocol and not cell.is_perplexity and reference in cell.present
        ]
        self._place = {
            measure: (base, number * len(tensor.checkpoints))
            for base, measures in BASES[protocol].items()
            for number, measure in enumerate(measures)
        }
        self._strata = [self._resampled(cell) for cell in self.cells]

    def column(self, measure: Flip, checkpoint: int) -> int:
        """Column of a measure of a checkpoint in the strata of its base."""
        return self._place[measure][1] + checkpoint

    def cells_with(self, measure: Flip, checkpoints: Sequence[int], among: Sequence[int]) -> list[int]:
        """Indices, of those `among`, of the cells in which all `checkpoints` have a measure."""
        if measure not in self._place:
            return []
        columns = [self.column(measure, i) for i in checkpoints]
        found = []
        for i in among:
            stratum = self._strata[i].get(self._place[measure][0])
            if stratum is not None and np.isfinite(stratum.stratum.means[columns]).all():
                found.append(i)
        return found

    def sample(self, measure: Flip, cells: Sequence[int]) -> BootstrapSample | None:
        """The sample of a measure over cells, each request once, weighted as everywhere; None without."""
        if not cells:
            return None
        counted = self.once(cells)
        weights = weights_of([self.cells[i] for i in counted])
        return BootstrapSample([self._strata[i][self._place[measure][0]] for i in counted], weights)

    def once(self, cells: Sequence[int]) -> list[int]:
        """Those of `cells` that their average counts: of cells with the same requests one."""
        return [cells[i] for i in self.tensor.counting.once([self.cells[i] for i in cells])]

    def contrast(self, measure: Flip, checkpoint: int, cells: Sequence[int]) -> Contrast | None:
        """A measure of a checkpoint over cells that have it; None without any."""
        data = self.sample(measure, self.cells_with(measure, [checkpoint], cells))
        return None if data is None else self.level(data, measure, checkpoint)

    def level(self, data: BootstrapSample, measure: Flip, checkpoint: int) -> Contrast:
        """Macro average of a measure: a share, whose draws stay in [0, 1], or κ."""
        if measure != "kappa":
            return data.level_contrast(self.column(measure, checkpoint))
        names: tuple[Flip, ...] = ("kappa", "agreement", "by_chance")
        columns = [self.column(name, checkpoint) for name in names]
        return data.average([_kappa(each, *columns) for each in data.strata])

    def _resampled(self, cell: Cell) -> dict[str, ResampledStratum]:
        """Base → stratum; without those of fewer than two units."""
        strata = {base: self._stratum(cell, base) for base in BASES[self.protocol]}
        return {
            base: ResampledStratum(stratum)
            for base, stratum in strata.items()
            if stratum is not None and stratum.units > 1
        }

    def _stratum(self, cell: Cell, base: str) -> Stratum | None:
        reference = Reference(cell, cell.present.index(self.reference))
        chosen = reference.documents(base)
        measures, count = BASES[self.protocol][base], len(self.tensor.checkpoints)
        columns = np.full((int(chosen.sum()), count * len(measures)), np.nan)
        variance = np.zeros(columns.shape[1])
        for measure in measures if chosen.any() else ():
            for member in self.members:
                row = cell.row(member)
                values = None if row is None else reference.values(measure, row)
                if values is not None:
                    at = self.column(measure, member)
                    columns[:, at] = values.mean(axis=0)
                    effect = seed_effect(values.T)
                    variance[at] = effect.seed_variance if effect else 0.0
        if np.isnan(columns).all():
            return None
        names = [checkpoint.weights_id for checkpoint in self.tensor.checkpoints]
        return Stratum(
            columns,
            tuple(f"{name} {measure}" for measure in measures for name in names),
            content_hash([cell.key, cell.documents[chosen].tolist()]),
            None if cell.clusters is None else np.unique(cell.clusters[chosen], return_inverse=True)[1],
            variance,
            np.full(columns.shape[1], max(1, len(cell.seeds) - 1)),
        )


def _kappa(stratum: ResampledStratum, kappa: int, agreement: int, by_chance: int) -> Contrast:
    """κ of one stratum by the bootstrap; with few disagreements by the interval of the agreement a.

    Then κ = 1 − (1 − a) ÷ (1 − e), whose agreement by chance e varies little compared with a.
    """
    if few_discordant(stratum.units({agreement: 1.0})) != 1.0:
        return stratum.bootstrap({kappa: 1.0})
    room = 1.0 - stratum.point({by_chance: 1.0})
    found = stratum.level(agreement).scaled(1.0 / room)
    return found.shifted(stratum.point({kappa: 1.0}) - found.point)


def agreement_rows(
    pool: AgreementPool, recipes: Recipes, informative: Sequence[str] | None = None
) -> list[AgreementRow]:
    """One row per student and scope: `all`, `informative` and the categories.

    Args:
        pool: against the teacher.
        recipes: tells which checkpoints are runs of one recipe.
        informative: names of the informative benchmarks under this protocol; None leaves the scope out.
    """
    scopes = scopes_of(pool.cells, informative)
    return [
        row
        for name, cells in scopes.items()
        for member in pool.members
        if (row := _row(pool, member, name, cells, recipes)) is not None
    ]


def benchmark_agreement_rows(pool: AgreementPool) -> list[AgreementRow]:
    """One row per student, benchmark and context."""
    found = []
    for i, cell in enumerate(pool.cells):
        rows = [_row(pool, member, cell.benchmark.name, [i], None, cell.context) for member in pool.members]
        found += [row for row in rows if row is not None]
    return found


def ceiling_rows(
    tensor: ResultTensor, protocol: str, recipes: Recipes, informative: Mapping[int, Sequence[str]]
) -> list[AgreementRow]:
    """Rows over all and over the informative benchmarks per pair of training runs of one recipe.

    They tell what another seed changes.

    Args:
        tensor: the results.
        protocol: `loglikelihood` or `generation`.
        recipes: tells which checkpoints are runs of one recipe.
        informative: index of a teacher → names of the informative benchmarks under this protocol.
    """
    found = []
    for family in recipes.families:
        for reference, member in combinations(family, 2):
            pool = AgreementPool(tensor, protocol, reference, [member])
            teacher = tensor.checkpoints[member].teacher
            names = None if teacher is None else informative.get(teacher)
            scopes = scopes_of(pool.cells, names)
            rows = [
                _row(pool, member, scope, scopes[scope], None)
                for scope in (ALL, INFORMATIVE)
                if scope in scopes
            ]
            found += [row for row in rows if row is not None]
    return found


def _row(
    pool: AgreementPool,
    checkpoint: int,
    scope: str,
    cells: Sequence[int],
    recipes: Recipes | None,
    context: int | None = None,
) -> AgreementRow | None:
    compared = pool.once(pool.cells_with("agreement", [checkpoint], cells))
    flipped = pool.once(pool.cells_with("lost", [checkpoint], cells))
    if not compared and not flipped:
        return None
    estimates = {measure: _estimate(pool, measure, [checkpoint], cells, None) for measure in FLIPS}
    row = AgreementRow(
        checkpoint=checkpoint,
        reference=pool.reference,
        protocol=pool.protocol,
        scope=scope,
        context=context,
        benchmarks=_names(pool, compared),
        benchmarks_with_flips=_names(pool, flipped),
        documents=sum(len(pool.cells[i].documents) for i in {*compared, *flipped}),
        agreement=estimates["agreement"],
        scored_agreement=estimates["scored_agreement"],
        kappa=estimates["kappa"],
        retained=estimates["retained"],
        lost=estimates["lost"],
        gained=estimates["gained"],
    )
    if recipes is None:
        return row
    runs = tuple(
        run
        for run in recipes.runs(checkpoint)
        if pool.once(pool.cells_with("agreement", [run], cells)) == compared
        and pool.once(pool.cells_with("lost", [run], cells)) == flipped
    )
    return replace(
        row,
        runs=runs,
        recipe_agreement=_estimate(pool, "agreement", runs, cells, recipes),
        recipe_retained=_estimate(pool, "retained", runs, cells, recipes),
    )


def _names(pool: AgreementPool, cells: Sequence[int]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(pool.cells[i].benchmark.name for i in cells))


WHY: dict[Flip, str] = {
    "agreement": "no benchmark has choices, or extracted answers, to compare",
    "scored_agreement": "the choices that the metric picks are not known",
    "kappa": "both always name the same choice, or answers are not choices",
    "by_chance": "both always name the same choice, or answers are not choices",
    "lost": "no benchmark has right and wrong answers",
    "gained": "no benchmark has right and wrong answers",
    "retained": "the teacher has fewer than two right answers",
}


def _estimate(
    pool: AgreementPool,
    measure: Flip,
    runs: Sequence[int],
    cells: Sequence[int],
    recipes: Recipes | None,
) -> Estimate:
    """The mean of a measure over runs; with `recipes` the interval contains the spread between runs."""
    among = cells
    if measure == "scored_agreement":
        # An average over a part of the benchmarks would not be comparable with the agreement.
        among = pool.cells_with("agreement", runs, cells)
    chosen = pool.cells_with(measure, runs, among)
    data = pool.sample(measure, chosen)
    if data is None or (measure == "scored_agreement" and len(chosen) < len(among)):
        return Estimate(None, WHY[measure])
    columns = [pool.column(measure, run) for run in runs]
    parts = [pool.level(data, measure, run) for run in runs]
    contrast = parts[0]
    for part in parts[1:]:
        contrast = contrast.minus(part, -1.0)
    contrast = contrast.scaled(1 / len(parts))
    method = METHODS[all(each.stratum.clusters is None for each in data.strata)]
    if recipes is not None:
        spread = recipes.spread(data, pool.reference, pool.column(measure, 0))
        if spread is None:
            method = ONE_RUN
        else:
            rng = data.rng(f"runs {measure}", *columns)
            contrast = contrast.with_noise(spread.variance / len(runs), spread.degrees, rng)
            method = f"{method}; {spread.method}"
    interval = contrast.interval(method=method)
    if measure != "kappa":
        interval = interval.clipped(0.0, 1.0)
    return Estimate(interval)
