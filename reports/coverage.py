"""Do the intervals hold what they promise, and does the gate? Simulations with a known truth.

    python -m evalsuite.reports.coverage --out reports/published/statistics

Each case throws right-or-wrong answers of a teacher and a student whose true scores and correlation are
known, asks the very code of the reports for its intervals, and counts how often the truth lies inside. The
gate is thrown against students that stand on its threshold (false alarms) and at its detectable effect
(power). With 4,000 simulations a case this takes half an hour on one core.
"""

import argparse
import csv
import io
import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import sqrt
from pathlib import Path
from statistics import NormalDist

import numpy as np
from scipy.special import ndtr

from evalsuite.foundation import progress, write_text
from evalsuite.reports.gating.decide import REGRESSION, rule
from evalsuite.reports.gating.measure import Measured
from evalsuite.reports.recovery import centred_recovery, recovery
from evalsuite.reports.resampled import Resampled
from evalsuite.reports.statistics.bootstrap import Stratum, percentile_interval
from evalsuite.reports.statistics.interval import Interval
from evalsuite.reports.statistics.paired import FEW
from evalsuite.reports.statistics.power import minimum_detectable_effect

SIMULATIONS = 4000
DRAWS = 1000
GATE_DRAWS = 8000
"""The gate looks further into the tail: a thousand draws would cost it power."""
CHANCE = 0.25
SEED = 20_250_414


@dataclass(frozen=True, slots=True)
class Case:
    """One point of the grid."""

    documents: int
    accuracy: float
    """Of the teacher."""
    kept: float
    """The student's accuracy as a share of the teacher's."""
    correlation: float
    """Of what makes two answers to one document right (Gaussian latents)."""


GRID = (
    *itertools.starmap(
        Case, itertools.product((200, 1000, 10_000), (0.3, 0.6, 0.9), (0.9,), (0.0, 0.5, 0.9))
    ),
    # Students that are almost their teacher, so that few documents disagree.
    Case(200, 0.6, 0.99, 0.99),
    Case(200, 0.9, 0.99, 0.99),
    Case(1000, 0.9, 0.998, 0.999),
)


@dataclass(frozen=True, slots=True)
class Coverage:
    """How often one quantity's interval held the truth in one case."""

    quantity: str
    documents: int
    accuracy: float
    kept: float
    correlation: float
    simulations: int
    defined: float
    """Share of simulations in which the quantity was defined."""
    coverage: float | None
    """Share of the defined intervals that held the truth; None where fewer than half were defined."""
    few: float
    """Share of simulations in which fewer than ten documents of a benchmark disagreed."""
    narrowest: float | None
    """Smallest width seen."""
    holds: bool
    """93 to 97 %, or above it where few documents disagree, and never without width."""


@dataclass(slots=True)
class Tally:
    """Counts of one quantity."""

    defined: int = 0
    inside: int = 0
    few: int = 0
    narrowest: float = float("inf")

    def add(self, interval: Interval | None, truth: float, contested: int) -> None:
        """Count one simulation."""
        self.few += contested < FEW
        if interval is not None:
            self.defined += 1
            self.inside += interval.low <= truth <= interval.high
            self.narrowest = min(self.narrowest, interval.width)


@lru_cache
def pattern_chances(truths: tuple[float, ...], correlation: float) -> np.ndarray:
    """Probability of every pattern of right and wrong, column c being bit c. [2 ** columns]

    An answer is right where √ρ·(what the document is like) + √(1−ρ)·(luck) stays under a cut that gives its
    true score. Given the document the columns are independent, so one integral over it is exact.
    """
    if not 0 <= correlation < 1:
        raise ValueError(f"a latent correlation lies in 0 … 1, 1 excluded; got {correlation}")
    # A fine plain grid: near a correlation of 1 the integrand is almost a step, which few nodes would miss.
    nodes = np.linspace(-8.5, 8.5, 17_001)
    weights = np.exp(-nodes * nodes / 2)
    weights = weights / weights.sum()
    normal = NormalDist()
    right = [
        ndtr((normal.inv_cdf(truth) - sqrt(correlation) * nodes) / sqrt(1 - correlation)) for truth in truths
    ]
    chances = [
        weights @ np.prod([p if code >> c & 1 else 1 - p for c, p in enumerate(right)], axis=0)
        for code in range(1 << len(truths))
    ]
    return np.array(chances) / sum(chances)


def answers(rng: np.random.Generator, documents: int, truths: Sequence[float], correlation: float) -> Stratum:
    """Throw one benchmark: a column of right-or-wrong answers per true score, patterns counted."""
    counts = rng.multinomial(documents, pattern_chances(tuple(truths), correlation))
    seen = np.flatnonzero(counts)
    values = (seen[:, None] >> np.arange(len(truths)) & 1).astype(float)
    return Stratum(values, counts[seen])


def contested(stratum: Stratum) -> int:
    """Documents on which the first two columns differ."""
    return int(stratum.counts[stratum.values[:, 0] != stratum.values[:, 1]].sum())


def simulate(case: Case, simulations: int = SIMULATIONS, seed: int = SEED) -> list[Coverage]:
    """Coverage of every quantity in one case."""
    key = [seed, case.documents, *(round(1000 * x) for x in (case.accuracy, case.kept, case.correlation))]
    rng = np.random.default_rng(key)
    tallies: dict[str, Tally] = {}
    for _ in range(simulations):
        for quantity, interval, truth, differing in (*_pair(case, rng), _average(case, rng), _gap(case, rng)):
            tallies.setdefault(quantity, Tally()).add(interval, truth, differing)
    return [_row(quantity, case, tally, simulations) for quantity, tally in tallies.items()]


Found = tuple[str, Interval | None, float, int]
"""Quantity, its interval, the truth, and how many documents disagreed."""


def _pair(case: Case, rng: np.random.Generator) -> list[Found]:
    """One benchmark: columns teacher, student and the chance level."""
    teacher, student = case.accuracy, case.accuracy * case.kept
    plain = answers(rng, case.documents, (teacher, student), case.correlation)
    chance = np.full((len(plain.counts), 1), CHANCE)
    data = Resampled([Stratum(np.hstack([plain.values, chance]), plain.counts)], [1.0], rng, draws=DRAWS)
    differing = contested(plain)
    above = (student - CHANCE) / (teacher - CHANCE)
    return [
        ("difference", data.difference_interval(0, 1), teacher - student, differing),
        ("recovery", recovery(data, 1, 0).interval, case.kept, differing),
        ("centred recovery", centred_recovery(data, 1, 0, 2).interval, above, differing),
    ]


def _average(case: Case, rng: np.random.Generator) -> Found:
    """Recovery over three benchmarks of different difficulty."""
    teachers = [case.accuracy, case.accuracy * 0.8, (1 + case.accuracy) / 2]
    strata = [answers(rng, case.documents, (t, t * case.kept), case.correlation) for t in teachers]
    data = Resampled(strata, [1.0] * 3, rng, draws=DRAWS)
    return "average of three", recovery(data, 1, 0).interval, case.kept, min(map(contested, strata))


def _gap(case: Case, rng: np.random.Generator) -> Found:
    """Ranked: teacher and a student that keeps all; written: both a little worse, and the student loses."""
    teacher, written = case.accuracy, case.accuracy * 0.95
    truths = (teacher, teacher, written, written * case.kept)
    stratum = answers(rng, case.documents, truths, case.correlation)
    data = Resampled([stratum], [1.0], rng, draws=DRAWS)
    gap = percentile_interval(data.gap((1, 3), (0, 2)), data.gap_draws((1, 3), (0, 2)))
    values = stratum.values
    differs = (values[:, 2] - values[:, 3]) - (values[:, 0] - values[:, 1]) != 0
    return "gap", gap, written * (1 - case.kept), int(stratum.counts[differs].sum())


def _row(quantity: str, case: Case, tally: Tally, simulations: int) -> Coverage:
    coverage = tally.inside / tally.defined if tally.defined >= simulations / 2 else None
    few = tally.few / simulations
    narrowest = tally.narrowest if tally.defined else None
    holds = coverage is None or (coverage >= 0.93 and (coverage <= 0.97 or few > 0))
    return Coverage(
        quantity,
        **asdict(case),
        simulations=simulations,
        defined=tally.defined / simulations,
        coverage=coverage,
        few=few,
        narrowest=narrowest,
        holds=holds and (narrowest is None or narrowest > 0),
    )


@dataclass(frozen=True, slots=True)
class GateRow:
    """How often the gate failed a policy of several lines."""

    what: str
    lines: int
    documents: int
    simulations: int
    failed: float
    promise: str
    holds: bool


def simulate_gate(
    lines: int, documents: int, simulations: int = SIMULATIONS, seed: int = SEED
) -> list[GateRow]:
    """False alarms of a student that stands on every threshold, and power where one line is worse.

    Args:
        lines: demands of recovery, each on a benchmark of its own.
        documents: of each benchmark.
        simulations: number of gates.
        seed: of the dice.
    """
    rng = np.random.default_rng([seed, lines, documents])
    teacher, kept, correlation = 0.7, 0.9, 0.6
    alarms = sum(
        _fails(rng, [(teacher, teacher * kept)] * lines, documents, correlation, kept)
        for _ in range(simulations)
    )
    effect = _detectable(rng, lines, documents, teacher, kept, correlation)
    truths = [(teacher, teacher * (kept - effect)), *[(teacher, teacher * kept)] * (lines - 1)]
    caught = sum(_fails(rng, truths, documents, correlation, kept) for _ in range(simulations))
    false, power = alarms / simulations, caught / simulations
    return [
        GateRow("false alarms", lines, documents, simulations, false, "at most 5 %", false <= 0.05),
        GateRow("power", lines, documents, simulations, power, "80 ± 5 %", 0.75 <= power <= 0.85),
    ]


def _lines(
    rng: np.random.Generator, truths: Sequence[tuple[float, float]], documents: int, correlation: float
) -> list[Measured]:
    found = []
    for pair in truths:
        data = Resampled([answers(rng, documents, pair, correlation)], [1.0], rng, draws=GATE_DRAWS)
        draws = data.ratio_draws(1, 0)
        assert draws is not None  # the teacher is far above zero
        found.append(Measured(data.ratio(1, 0), draws, documents, ()))
    return found


def _fails(
    rng: np.random.Generator,
    truths: Sequence[tuple[float, float]],
    documents: int,
    correlation: float,
    threshold: float,
) -> bool:
    measured = _lines(rng, truths, documents, correlation)
    rulings = rule(measured, [threshold] * len(measured), [True] * len(measured))
    return any(ruling.outcome == REGRESSION for ruling in rulings)


def _detectable(
    rng: np.random.Generator, lines: int, documents: int, teacher: float, kept: float, correlation: float
) -> float:
    """The minimum detectable effect at this level, from standard errors at the effect itself."""
    level = 1 - 0.05 / lines
    effect = 0.0
    for _ in range(3):
        pair = (teacher, teacher * (kept - effect))
        errors = [float(_lines(rng, [pair], documents, correlation)[0].draws.std()) for _ in range(40)]
        effect = minimum_detectable_effect(float(np.mean(errors)), level=level)
    return effect


def table(rows: Sequence[Coverage] | Sequence[GateRow]) -> str:
    """CSV of the rows."""
    buffer = io.StringIO()
    flat = [asdict(row) for row in rows]
    writer = csv.DictWriter(buffer, list(flat[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return buffer.getvalue()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the grid and write coverage.csv and gate.csv; 0 if every row holds, else 65."""
    parser = argparse.ArgumentParser(prog="python -m evalsuite.reports.coverage", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for coverage.csv and gate.csv")
    parser.add_argument(
        "--simulations", type=int, default=SIMULATIONS, help="per case (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    rows: list[Coverage] = []
    for case in progress(GRID, what="coverage"):
        rows += simulate(case, options.simulations)
        write_text(options.out / "coverage.csv", table(rows))
    gates: list[GateRow] = []
    for lines, documents in progress(((1, 1000), (5, 1000), (5, 200)), what="gate"):
        gates += simulate_gate(lines, documents, options.simulations)
        write_text(options.out / "gate.csv", table(gates))
    every: list[Coverage | GateRow] = [*rows, *gates]
    failing = [row for row in every if not row.holds]
    for row in failing:
        print(row)
    print(f"{len(every) - len(failing)} of {len(every)} rows hold")
    return 65 if failing else 0


if __name__ == "__main__":
    raise SystemExit(main())
