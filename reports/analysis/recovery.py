"""Recovery, chance-normalized and capped recovery, win-or-tie rate and log-perplexity change of a student."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from evalsuite.reports.analysis.bootstrap_sample import BootstrapSample, Estimate, ResampledStratum, Terms
from evalsuite.reports.analysis.replicates import ONE_RUN, RunSpread
from evalsuite.reports.statistics.bootstrap import Stratum
from evalsuite.reports.statistics.contrasts import Contrast, is_positive, ratio_interval
from evalsuite.reports.statistics.paired import paired_counts


@dataclass(frozen=True, slots=True)
class Ratio:
    """Numerator and denominator of a recovery: (students − chance) and (teacher − chance)."""

    numerator: Contrast
    denominator: Contrast
    method: str

    def estimate(self, level: float = 0.95, floor: float | None = None) -> Estimate:
        """The ratio with its interval, not below `floor`."""
        interval = ratio_interval(self.numerator, self.denominator, level, self.method)
        if floor is not None:
            interval = replace(interval, low=max(floor, interval.low), high=max(floor, interval.high))
        return Estimate(interval)


def ratio_of(
    data: BootstrapSample,
    students: Sequence[int],
    teacher: int,
    chance: int | None = None,
    spread: RunSpread | None = None,
) -> Ratio | str:
    """Build the ratio of a recovery, or say why it is undefined.

    It is defined by Fieller's criterion: the 95 % t interval of the teacher's lead over zero, or over chance,
    must lie above zero.

    Args:
        data: strata with all columns.
        students: runs of one recipe, averaged; or a single student.
        teacher: its column.
        chance: column of the chance level, subtracted from both; None for none.
        spread: spread between runs; the interval then contains it.
    """
    lead = data.mean({teacher: 1.0} if chance is None else {teacher: 1.0, chance: -1.0})
    if not is_positive(lead):
        return _undefined(lead, "zero" if chance is None else "chance")
    method = data.method(_drop_terms(students, teacher))
    if spread is not None:
        method = f"{method}; {spread.method}"
    return Ratio(lead.minus(mean_drop(data, students, teacher, spread)), lead, method)


def mean_drop(
    data: BootstrapSample, students: Sequence[int], teacher: int, spread: RunSpread | None = None
) -> Contrast:
    """Teacher − mean of `students`; with a spread, the noise of their training runs is added."""
    drop = data.contrast(_drop_terms(students, teacher))
    if spread is None:
        return drop
    return drop.with_noise(spread.variance / len(students), spread.degrees, data.rng("runs", *students))


def _drop_terms(students: Sequence[int], teacher: int) -> Terms:
    return {teacher: 1.0, **{student: -1.0 / len(students) for student in students}}


def _undefined(lead: Contrast, above: str) -> str:
    if lead.point <= 0:
        what = "teacher's score" if above == "zero" else "teacher"
        return f"the {what} is not above {above}"
    interval = lead.interval()
    what = "score" if above == "zero" else "lead over chance"
    return (
        f"the teacher's {what} of {100 * lead.point:.1f} points cannot be told from zero on "
        f"these documents (95 % interval {100 * min(0.0, interval.low):.1f} to {100 * interval.high:.1f})"
    )


def recovery(data: BootstrapSample, student: int, teacher: int, level: float = 0.95) -> Estimate:
    """Student ÷ teacher, the ratio of macro averages on the same documents (Table 2 of arXiv 2504.14366).

    Args:
        data: strata in which both are columns.
        student: its column.
        teacher: its column.
        level: confidence level of the interval.
    """
    ratio = ratio_of(data, [student], teacher)
    return Estimate(None, ratio) if isinstance(ratio, str) else ratio.estimate(level, 0.0)


def recipe_recovery(
    data: BootstrapSample, students: Sequence[int], teacher: int, spread: RunSpread | None
) -> Estimate:
    """Recovery of a recipe: the mean of its runs, with an interval over documents and training runs.

    Without a known spread between runs the interval covers documents only, and its method says so.
    """
    ratio = ratio_of(data, students, teacher, spread=spread)
    if isinstance(ratio, str):
        return Estimate(None, ratio)
    if spread is None:
        ratio = replace(ratio, method=ONE_RUN)
    return ratio.estimate(floor=0.0)


def chance_normalized_recovery(
    data: BootstrapSample, student: int, teacher: int, chance: int, level: float = 0.95
) -> Estimate:
    """Σ(s−c) ÷ Σ(t−c), with the chance level c of each document in column `chance`.

    Undefined (not clipped) if the teacher's interval reaches chance.
    """
    ratio = ratio_of(data, [student], teacher, chance)
    return Estimate(None, ratio) if isinstance(ratio, str) else ratio.estimate(level)


def capped_ratio(data: BootstrapSample, benchmarks: Sequence[str], student: int, teacher: int) -> Ratio | str:
    """Σ w·min(s, t) over Σ w·t, sums over benchmarks, or why it is undefined; see `ratio_of`.

    Args:
        data: strata in which both are columns.
        benchmarks: name of the benchmark of each stratum; the contexts of a benchmark are averaged first.
        student: its column.
        teacher: its column.
    """
    ratio = ratio_of(data, [student], teacher)
    if isinstance(ratio, str):
        return ratio
    point, draws = 0.0, np.zeros(len(ratio.denominator.draws))
    for name in dict.fromkeys(benchmarks):
        strata = [i for i, each in enumerate(benchmarks) if each == name]
        part = BootstrapSample([data.strata[i] for i in strata], data.weights[strata])
        theirs, drop = part.mean({teacher: 1.0}), part.contrast({teacher: 1.0, student: -1.0})
        weight = float(data.weights[strata].sum())
        point += weight * (theirs.point - max(0.0, drop.point))
        draws += weight * (theirs.draws - np.maximum(0.0, drop.draws))
    numerator = replace(ratio.numerator, point=point, draws=draws)
    return replace(ratio, numerator=replace(numerator, variance=numerator.deviation**2))


def capped_recovery(
    data: BootstrapSample, benchmarks: Sequence[str], student: int, teacher: int, level: float = 0.95
) -> Estimate:
    """Recovery in which no benchmark counts above its teacher: see `capped_ratio`."""
    ratio = capped_ratio(data, benchmarks, student, teacher)
    return Estimate(None, ratio) if isinstance(ratio, str) else ratio.estimate(level, 0.0)


def win_or_tie_rate(data: BootstrapSample, student: int, teacher: int) -> float:
    """Share of documents on which the student scores at least as high as the teacher, macro average."""
    shares = []
    for each in data.strata:
        counts = paired_counts(each.stratum.values[:, student], each.stratum.values[:, teacher])
        shares.append((counts.wins + counts.ties) / counts.documents)
    return float(data.weights @ np.array(shares))


def log_perplexity(
    losses: np.ndarray,
    units: np.ndarray,
    terms: Sequence[float],
    key: str,
    clusters: np.ndarray | None = None,
) -> Contrast | None:
    """Combine log-perplexities Σ losses ÷ Σ units, such as student − teacher.

    The bootstrap resamples the linearized ratio (Cochran 1977, section 6.4): the residual of each document.

    Args:
        losses: [documents, columns] negative log-likelihoods in nats.
        units: [documents, columns] number of units (words, bytes) of each document.
        terms: coefficient of each column.
        key: see `Stratum`.
        clusters: see `Stratum`.

    Returns:
        Nats per unit. None for fewer than two documents or clusters.
    """
    levels = losses.sum(axis=0) / units.sum(axis=0)
    residuals = (losses - levels * units) / units.mean(axis=0)
    values = ((levels + residuals) @ np.asarray(terms, dtype=float))[:, None]
    stratum = Stratum(values, ("log-perplexity",), key, clusters)
    return ResampledStratum(stratum).bootstrap({0: 1.0}) if stratum.units > 1 else None
