"""Coverage of the confidence intervals and error rates of the gate, in simulations with a known truth.

    python -m tests.parity.interval_coverage --out reports/results/statistics

Every setting draws scores with known true means and computes intervals and gate decisions with the code of
the reports. False alarms: a student exactly on the threshold. Power: a student that misses it by the minimum
detectable effect which the gate states. One run writes coverage.csv and summary.md; it takes a quarter of an
hour on one core. Exit code: 0 if every row holds, 1 if not, 64 or more if the study could not be run.
"""

import csv
import io
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evalsuite.cli.exit_codes import guarded
from evalsuite.foundation import progress, write_text
from evalsuite.foundation.parser import Parser
from evalsuite.reports.analysis.recovery import mean_drop, ratio_of
from evalsuite.reports.gate.decide import REGRESSION, decide
from evalsuite.reports.rules.measurement import Measurement
from evalsuite.reports.statistics.intervals import Interval
from tests.parity.simulation import LONGBENCH, Setting, Simulated, draw, points, truths

SIMULATIONS = 1500
DRAWS = 1000
SEED = 20_261_122
INDEPENDENT = (0.93, 0.97)
WIDEST = 1.5
"""Mean width of an interval, at most, relative to the central 95 % of the simulated estimates."""

SETTINGS = (
    *(
        Setting(
            name=f"independent, n {n}, teacher {100 * p:.0f} %",
            sizes=(n,),
            teacher=p,
            student=0.9 * p,
            required=INDEPENDENT,
        )
        for n, p in ((200, 0.3), (200, 0.6), (200, 0.9), (500, 0.3), (500, 0.6), (500, 0.9))
    ),
    Setting(name="independent, three of 200", sizes=(200,) * 3, required=INDEPENDENT),
    *(
        Setting(
            name=f"clusters {count} × {size}, ICC {icc}",
            sizes=(count * size,),
            cluster_size=size,
            icc=icc,
            correlation=0.3,
        )
        for count, size, icc in ((20, 10, 0.1), (20, 10, 0.2), (50, 4, 0.2), (27, 37, 0.1), (60, 129, 0.03))
    ),
    *(
        Setting(
            name=f"3 sampling seeds, deviation {100 * deviation:g} points, n {n}",
            sizes=(n,),
            seeds=3,
            seed_deviation=deviation,
            power=False,
        )
        for deviation, n in ((0.0, 500), (0.012, 1000), (0.04, 200), (0.04, 500))
    ),
    *(
        Setting(
            name=f"recipe of {runs} runs, deviation 1.2 points, n {n}",
            sizes=(n,),
            runs=runs,
            run_deviation=0.012,
            power=False,
        )
        for runs, n in ((2, 500), (3, 500), (3, 2000))
    ),
    *(
        Setting(
            name=f"fractions, n {n}, {100 * zeros:.0f} % zeros",
            sizes=(n,),
            teacher=first,
            student=0.8 * first,
            zeros=zeros,
            power=False,
        )
        for n in (4, 6, 8, 12, 26)
        for first, zeros in ((0.5, 0.3), (1.0, 0.6), (2.0, 0.0))
    ),
    Setting(
        name="fractions, 21 sets of 4 to 26",
        sizes=LONGBENCH,
        teacher=0.5,
        student=0.4,
        zeros=0.3,
        power=False,
    ),
)


@dataclass(slots=True, kw_only=True)
class Row:
    """Results of one setting."""

    setting: str
    simulations: int
    difference: float
    """Share of the intervals of teacher − student that cover the truth."""
    recovery: float | None
    """The same for recovery, where it is defined in half of the simulations."""
    defined: float
    """Share of simulations in which recovery is defined."""
    width: float
    """Mean width of the interval of the difference ÷ width of the central 95 % of the estimates."""
    false_alarms: float
    """Share of gates that fail a student on the threshold of its drop or recovery, the larger of both."""
    power: float | None
    """Share of gates that fail a student which is worse by the stated effect; None: not simulated."""
    required: str
    holds: bool


def simulate(setting: Setting, simulations: int = SIMULATIONS) -> Row:
    """Coverage and error rates in one setting."""
    rng = np.random.default_rng([SEED, *setting.name.encode()])
    teacher, student = truths(setting)
    inside: dict[str, list[bool]] = {"difference": [], "recovery": []}
    alarms: dict[str, int] = {"difference": 0, "recovery": 0}
    widths = []
    for _ in range(simulations):
        measured = measure(draw(setting, rng, DRAWS))
        for what, truth in (("difference", teacher - student), ("recovery", student / teacher)):
            if what in measured:
                interval = measured[what].interval(0.95)
                inside[what].append(covers(interval, truth))
                alarms[what] += fails(measured[what], truth, what == "recovery")
                widths += [interval.width] if what == "difference" else []
    low, high = np.quantile(points(setting, rng, max(1000, simulations)), [0.025, 0.975])
    defined = len(inside["recovery"]) / simulations
    row = Row(
        setting=setting.name,
        simulations=simulations,
        difference=float(np.mean(inside["difference"])),
        recovery=float(np.mean(inside["recovery"])) if defined >= 0.5 else None,
        defined=defined,
        width=float(np.mean(widths)) / float(high - low),
        false_alarms=max(alarms.values()) / simulations,
        power=_power(setting, rng, simulations) if setting.power else None,
        required=f"{100 * setting.required[0]:.0f} to {100 * setting.required[1]:.0f} %",
        holds=False,
    )
    row.holds = holds(row, setting)
    return row


def measure(simulated: Simulated) -> dict[str, Measurement]:
    """Measure the drop and, where it is defined, the recovery, as the gate does."""
    data, students, spread = simulated.data, simulated.students, simulated.spread
    drop = mean_drop(data, students, 0, spread)
    found = {"difference": Measurement(drop, data.documents, ())}
    ratio = ratio_of(data, students, 0, spread=spread)
    if not isinstance(ratio, str):
        found["recovery"] = Measurement(ratio.numerator, data.documents, (), ratio.denominator)
    return found


def covers(interval: Interval, truth: float) -> bool:
    """Whether an interval contains the truth."""
    return interval.low <= truth <= interval.high


def fails(measured: Measurement, threshold: float, at_least: bool) -> bool:
    """Whether the gate proves that a quantity misses its threshold."""
    return decide([measured], [threshold], [at_least])[0].outcome == REGRESSION


def _power(setting: Setting, rng: np.random.Generator, simulations: int) -> float:
    """Power for a student whose recovery misses its threshold by the effect that the gate states for it."""
    teacher, student = truths(setting)
    threshold, effect = student / teacher, 0.0
    for repeats in (40, 40, 300):
        stated = [
            decide([measure(draw(setting, rng, DRAWS, teacher * effect))["recovery"]], [threshold], [True])
            for _ in range(repeats)
        ]
        effect = float(np.mean([decisions[0].mde for decisions in stated]))
    caught = [
        fails(measure(draw(setting, rng, DRAWS, teacher * effect))["recovery"], threshold, True)
        for _ in range(simulations)
    ]
    return float(np.mean(caught))


def holds(row: Row, setting: Setting) -> bool:
    """Whether a row meets every requirement."""
    low, high = setting.required
    covered = [share for share in (row.difference, row.recovery) if share is not None]
    narrow = row.width <= WIDEST or len(setting.sizes) < len(LONGBENCH)
    powerful = row.power is None or 0.75 <= row.power <= 0.85
    return all(low <= share <= high for share in covered) and narrow and powerful and row.false_alarms <= 0.05


def table(rows: Sequence[Any]) -> str:
    """Format rows, which are dataclasses, as CSV."""
    buffer = io.StringIO()
    flat = [asdict(row) for row in rows]
    writer = csv.DictWriter(buffer, list(flat[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return buffer.getvalue()


def summary(rows: Sequence[Row]) -> str:
    """Summarize the rows as a Markdown table."""

    def share(value: float | None) -> str:
        return "–" if value is None else f"{100 * value:.1f}"

    lines = [
        "| setting | difference | recovery | required | width | false alarms | power |",
        "|---|---:|---:|---:|---:|---:|---:|",
        *(
            f"| {row.setting} | {share(row.difference)} | {share(row.recovery)} | {row.required} | "
            f"{row.width:.2f} | {share(row.false_alarms)} | {share(row.power)} |"
            for row in rows
        ),
        "",
        f"{sum(row.holds for row in rows)} of {len(rows)} settings hold; {rows[0].simulations:,} simulations "
        f"each, {DRAWS:,} draws; NumPy {np.__version__}.",
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate every setting and write coverage.csv and summary.md; 0 if every row holds, else 1."""
    parser = Parser(prog="python -m tests.parity.interval_coverage", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the two files")
    parser.add_argument(
        "--simulations", type=int, default=SIMULATIONS, help="per setting (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    rows = []
    for setting in progress(SETTINGS, what="settings"):
        rows.append(simulate(setting, options.simulations))
        write_text(options.out / "coverage.csv", table(rows))
    write_text(options.out / "summary.md", summary(rows))
    print(summary(rows))
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(guarded("interval_coverage", main, resumable=False))
