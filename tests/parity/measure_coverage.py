"""Coverage of the intervals of the measures of what was lost, in simulations with a known truth.

    python -m tests.parity.measure_coverage --out reports/results/statistics

Every setting draws the answers of a teacher and its students to multiple-choice documents, or KL divergences
of documents, and measures them with the code of the reports: agreement, Cohen's κ, retained, informative and
capped recovery, the critical tolerance α*, the slope of recovery by training tokens, KL and equivalent bits.
One run writes measures.csv and measures.md; it takes seven minutes on one core. Exit code: 0 if every row
holds, 1 if not, 64 or more if the study could not be run.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

import numpy as np

from evalsuite.cli.exit_codes import guarded
from evalsuite.foundation import progress, write_text
from evalsuite.foundation.parser import Parser
from evalsuite.reports.analysis.bootstrap_sample import Estimate
from evalsuite.reports.analysis.informative import informative_names, informative_rows
from evalsuite.reports.analysis.recovery import capped_recovery, recovery
from evalsuite.reports.analysis.scopes import Pool
from evalsuite.reports.measures.agreement.rows import AgreementPool, benchmark_agreement_rows
from evalsuite.reports.measures.agreement.tolerance import critical, shortfall, tolerance_rows
from evalsuite.reports.measures.distances.rows import distance_rows
from evalsuite.reports.measures.scaling.fits import scaling_rows
from evalsuite.reports.statistics.intervals import Interval
from evalsuite.reports.statistics.yardstick import equivalent_bits
from tests.parity.interval_coverage import table
from tests.parity.simulated_answers import (
    PROTOCOL,
    Answers,
    Divergences,
    draw_answers,
    draw_divergences,
    tensor_of,
)

SIMULATIONS = 300
SEED = 20_261_122
REQUIRED = 0.92
"""Least coverage of a 95 % interval; more than 95 % is wider than needed, but no error."""

Measured = Iterator[tuple[str, Interval | Estimate, float]]
"""Name of the measure, its interval, and the truth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """One setting and what is measured in it."""

    name: str
    measure: Callable[[np.random.Generator], Measured]


@dataclass(slots=True, kw_only=True)
class Row:
    """Coverage of one measure in one setting."""

    measure: str
    setting: str
    simulations: int
    defined: float
    """Share of the simulations in which the measure is defined."""
    coverage: float
    below: float
    """Share of the intervals that lie below the truth."""
    above: float
    truth: float
    width: float
    """Mean width of the intervals."""
    holds: bool


def agreement(setting: Answers) -> Callable[[np.random.Generator], Measured]:
    """Agreement, κ and retained of one student on one benchmark."""

    def measure(rng: np.random.Generator) -> Measured:
        tensor = tensor_of(draw_answers(setting, rng))
        (row,) = benchmark_agreement_rows(AgreementPool(tensor, PROTOCOL, 0))
        for name in ("agreement", "kappa", "retained", "lost"):
            yield name, getattr(row, name), setting.truth(name)

    return measure


def informative(setting: Answers) -> Callable[[np.random.Generator], Measured]:
    """Recovery over the benchmarks that prove to be informative; the truth is that of the same benchmarks."""

    def measure(rng: np.random.Generator) -> Measured:
        pool = Pool(tensor_of(draw_answers(setting, rng)), PROTOCOL)
        names = informative_names(informative_rows(pool, 0), 0, PROTOCOL)
        cells = tuple(i for i, cell in enumerate(pool.cells) if cell.benchmark.name in names)
        data = pool.sample(cells)
        if data is None:
            yield "informative recovery", Estimate(None, "no benchmark is informative"), np.nan
            return
        theirs = np.array([setting.teacher[i] for i in cells])
        mine = np.array([setting.student_score(i) for i in cells])
        yield "informative recovery", recovery(data, 1, 0), mine.mean() / theirs.mean()
        capped = capped_recovery(data, [pool.cells[i].benchmark.name for i in cells], 1, 0)
        yield "capped recovery", capped, np.minimum(mine, theirs).mean() / theirs.mean()

    return measure


def tolerance(setting: Answers) -> Callable[[np.random.Generator], Measured]:
    """The critical tolerance, within which the student is on half of the benchmarks."""

    def measure(rng: np.random.Generator) -> Measured:
        pool = Pool(tensor_of(draw_answers(setting, rng)), PROTOCOL)
        (row,) = tolerance_rows(pool, {})
        count = len(setting.teacher)
        mine = np.array([setting.student_score(i) for i in range(count)])
        lost = shortfall(mine, np.array(setting.teacher))[:, None]
        weights = np.full(count, 1 / count)
        yield "α*", row.critical_half, float(critical(lost, weights, 0.5)[0])

    return measure


def scaling(setting: Answers) -> Callable[[np.random.Generator], Measured]:
    """The slope of recovery per doubling of the training tokens, of the students of one training run."""

    def measure(rng: np.random.Generator) -> Measured:
        pool = Pool(tensor_of(draw_answers(setting, rng)), PROTOCOL)
        ((row,), _) = scaling_rows(pool, {})
        theirs = np.mean(setting.teacher)
        points = [
            np.mean([setting.student_score(i, student) for i in range(len(setting.teacher))]) / theirs
            for student in range(len(setting.copied))
        ]
        slope = np.polyfit(np.log2(np.array(row.values)), np.array(points), 1)[0]
        yield "slope", row.slope, float(slope)

    return measure


def divergence(setting: Divergences) -> Callable[[np.random.Generator], Measured]:
    """KL in nats per token, and the bits of the rounding at the same distance."""

    def measure(rng: np.random.Generator) -> Measured:
        rows = distance_rows(*draw_divergences(setting, rng))
        (row,) = (each for each in rows if each.kind == "all" and each.checkpoint == 1)
        yield "KL", row.kl, setting.level
        scale = dict(setting.scale)
        yield "equivalent bits", row.equivalent_bits, float(equivalent_bits(np.array(setting.level), scale))

    return measure


STUDIES = (
    *(
        Study(name=f"n {n}, copies {100 * c:.0f} %", measure=agreement(Answers(documents=n, copied=(c,))))
        for n in (60, 500)
        for c in (0.5, 0.8, 0.95)
    ),
    Study(
        name="n 500, teacher at 90 %, copies 95 %",
        measure=agreement(Answers(documents=500, teacher=(0.9,), copied=(0.95,))),
    ),
    Study(
        name="n 500, 60, 45 and 40 %, three at chance",
        measure=informative(Answers(documents=500, teacher=(0.6, 0.45, 0.4, 0.25, 0.25, 0.25))),
    ),
    Study(
        name="n 300, 60 %, three barely above chance",
        measure=informative(Answers(documents=300, teacher=(0.6, 0.3, 0.3, 0.3))),
    ),
    Study(
        name="8 benchmarks of 300, equal losses",
        measure=tolerance(Answers(documents=300, teacher=(0.6,) * 8, alone=(0.35,))),
    ),
    Study(
        name="8 benchmarks of 300, losses of 0 to 25 %",
        measure=tolerance(
            Answers(documents=300, teacher=(0.6, 0.62, 0.65, 0.68, 0.7, 0.75, 0.8, 0.85), alone=(0.5,))
        ),
    ),
    Study(
        name="two benchmarks of 400, 12 to 31M tokens",
        measure=scaling(
            Answers(
                documents=400,
                teacher=(0.6, 0.5),
                copied=(0.5, 0.6, 0.7, 0.75),
                tokens=(12, 18, 24, 31),
            )
        ),
    ),
    *(
        Study(
            name=f"{n} documents, spread {spread:g}, {level:g} nats",
            measure=divergence(Divergences(documents=n, spread=spread, level=level)),
        )
        for n, spread, level in ((85, 0.3, 0.4), (240, 0.3, 1.0), (240, 1.0, 0.25), (1000, 1.0, 0.25))
    ),
)


def simulate(study: Study, simulations: int) -> list[Row]:
    """Coverage of every measure of a study."""
    rng = np.random.default_rng([SEED, *study.name.encode()])
    found: dict[str, list[tuple[Interval | None, float]]] = {}
    for _ in range(simulations):
        for name, value, truth in study.measure(rng):
            interval = value.interval if isinstance(value, Estimate) else value
            found.setdefault(name, []).append((interval, truth))
    rows = []
    for name, every in found.items():
        known = [(interval, truth) for interval, truth in every if interval is not None]
        # An end that is the truth up to rounding contains it.
        below = np.mean([interval.high < truth - 1e-9 for interval, truth in known])
        above = np.mean([interval.low > truth + 1e-9 for interval, truth in known])
        coverage = float(1 - below - above)
        rows.append(
            Row(
                measure=name,
                setting=study.name,
                simulations=simulations,
                defined=len(known) / len(every),
                coverage=coverage,
                below=float(below),
                above=float(above),
                truth=float(np.mean([truth for _, truth in known])),
                width=float(np.mean([interval.width for interval, _ in known])),
                holds=holds(coverage, len(known)),
            )
        )
    return rows


def holds(coverage: float, simulations: int) -> bool:
    """Whether a coverage is not below the required one by more than two standard errors of the simulation."""
    return coverage >= REQUIRED - 2 * sqrt(REQUIRED * (1 - REQUIRED) / simulations)


def summary(rows: Sequence[Row]) -> str:
    """Summarize the rows as a Markdown table."""
    lines = [
        "| measure | setting | truth | coverage % | interval below the truth % | above % | mean width |",
        "|---|---|---:|---:|---:|---:|---:|",
        *(
            f"| {row.measure} | {row.setting} | {row.truth:.3f} | {100 * row.coverage:.1f} | "
            f"{100 * row.below:.1f} | {100 * row.above:.1f} | {row.width:.3f} |"
            for row in rows
        ),
        "",
        f"{sum(row.holds for row in rows)} of {len(rows)} rows hold (at least {100 * REQUIRED:.0f} %, within "
        f"two standard errors of the simulation); {rows[0].simulations:,} simulations each; "
        f"NumPy {np.__version__}.",
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate every setting and write measures.csv and measures.md; 0 if every row holds, else 1."""
    parser = Parser(prog="python -m tests.parity.measure_coverage", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the two files")
    parser.add_argument(
        "--simulations", type=int, default=SIMULATIONS, help="per setting (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    rows: list[Row] = []
    for study in progress(STUDIES, what="settings"):
        rows += simulate(study, options.simulations)
        write_text(options.out / "measures.csv", table(rows))
    write_text(options.out / "measures.md", summary(rows))
    print(summary(rows))
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(guarded("measure_coverage", main, resumable=False))
