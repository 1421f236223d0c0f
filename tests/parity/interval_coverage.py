"""Coverage of the confidence intervals and error rates of the gate, in simulations with a known truth.

    python -m tests.parity.interval_coverage --out reports/results/statistics

Each case draws binary scores of a teacher and a student with known true scores and correlation, computes the
intervals with the code of the reports, and counts how often the truth lies inside. The gate is applied to
students exactly on its threshold (false alarms) and at its minimum detectable effect (power). One run writes
coverage.csv, gate.csv and summary.md. With 4,000 simulations per case it takes half an hour on one core.
Exit code: 0 if every row holds, 1 if not, 64 or more if the study could not be run.
"""

import argparse
import csv
import io
import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_type_hints

import numpy as np

from evalsuite.foundation import progress, write_text
from evalsuite.reports.analysis.bootstrap_sample import BootstrapSample
from evalsuite.reports.analysis.recovery import chance_normalized_recovery, recovery
from evalsuite.reports.gate.decide import REGRESSION, Decision, decide
from evalsuite.reports.gate.evaluator import Measurement
from evalsuite.reports.statistics.bootstrap import Stratum, percentile_interval
from evalsuite.reports.statistics.intervals import Interval
from evalsuite.reports.statistics.paired import FEW
from tests.parity.exit_codes import exit_with
from tests.parity.simulation import count_discordant, draw_scores

SIMULATIONS = 4000
DRAWS = 1000
GATE_DRAWS = 8000
"""The gate needs the far tail: a thousand draws would cost power."""
CHANCE = 0.25
SEED = 20_250_414


@dataclass(frozen=True, slots=True)
class Case:
    """One point of the grid."""

    documents: int
    accuracy: float
    """Of the teacher."""
    true_recovery: float
    """True accuracy of the student ÷ that of the teacher."""
    correlation: float
    """Correlation of the Gaussian latents of two checkpoints on one document."""


GRID = (
    *itertools.starmap(
        Case, itertools.product((200, 1000, 10_000), (0.3, 0.6, 0.9), (0.9, 1.0), (0.0, 0.5, 0.9))
    ),
    # Students close to their teacher, with few discordant documents.
    Case(200, 0.6, 0.99, 0.99),
    Case(200, 0.9, 0.99, 0.99),
    Case(1000, 0.9, 0.998, 0.999),
)


@dataclass(frozen=True, slots=True)
class Coverage:
    """Coverage of the interval of one quantity in one case."""

    quantity: str
    documents: int
    accuracy: float
    true_recovery: float
    correlation: float
    simulations: int
    defined: float
    """Share of simulations in which the quantity was defined."""
    coverage: float | None
    """Share of the defined intervals that cover the truth; None if fewer than half are defined."""
    few: float
    """Share of simulations with fewer than ten discordant documents in a benchmark."""
    narrowest: float | None
    """Smallest interval width."""
    holds: bool | None
    """Whether coverage is 93 to 97 % (or more, if mostly few documents are discordant) with positive widths;
    None if coverage is None."""


@dataclass(slots=True)
class Tally:
    """Counts of one quantity."""

    defined: int = 0
    inside: int = 0
    few: int = 0
    narrowest: float = float("inf")

    def add(self, interval: Interval | None, truth: float, count_discordant: int) -> None:
        """Count one simulation."""
        self.few += count_discordant < FEW
        if interval is not None:
            self.defined += 1
            self.inside += interval.low <= truth <= interval.high
            self.narrowest = min(self.narrowest, interval.width)


def simulate(case: Case, simulations: int = SIMULATIONS, seed: int = SEED) -> list[Coverage]:
    """Coverage of every quantity in one case."""
    key = [
        seed,
        case.documents,
        *(round(1000 * x) for x in (case.accuracy, case.true_recovery, case.correlation)),
    ]
    rng = np.random.default_rng(key)
    tallies: dict[str, Tally] = {}
    for _ in range(simulations):
        for quantity, interval, truth, differing in (*_pair(case, rng), _average(case, rng), _gap(case, rng)):
            tallies.setdefault(quantity, Tally()).add(interval, truth, differing)
    return [_row(quantity, case, tally, simulations) for quantity, tally in tallies.items()]


Found = tuple[str, Interval | None, float, int]
"""Quantity, its interval, the truth, and the number of discordant documents."""


def _pair(case: Case, rng: np.random.Generator) -> list[Found]:
    """One benchmark: columns teacher, student and the chance level."""
    teacher, student = case.accuracy, case.accuracy * case.true_recovery
    plain = draw_scores(rng, case.documents, (teacher, student), case.correlation)
    chance = np.full((len(plain.counts), 1), CHANCE)
    data = BootstrapSample(
        [Stratum(np.hstack([plain.values, chance]), plain.counts)], [1.0], rng, draws=DRAWS
    )
    differing = count_discordant(plain)
    above = (student - CHANCE) / (teacher - CHANCE)
    return [
        ("difference", data.difference_interval(0, 1), teacher - student, differing),
        ("recovery", recovery(data, 1, 0).interval, case.true_recovery, differing),
        ("chance-normalized recovery", chance_normalized_recovery(data, 1, 0, 2).interval, above, differing),
    ]


def _average(case: Case, rng: np.random.Generator) -> Found:
    """Recovery over three benchmarks of different difficulty."""
    teachers = [case.accuracy, case.accuracy * 0.8, (1 + case.accuracy) / 2]
    strata = [
        draw_scores(rng, case.documents, (t, t * case.true_recovery), case.correlation) for t in teachers
    ]
    data = BootstrapSample(strata, [1.0] * 3, rng, draws=DRAWS)
    return (
        "average of three",
        recovery(data, 1, 0).interval,
        case.true_recovery,
        min(map(count_discordant, strata)),
    )


def _gap(case: Case, rng: np.random.Generator) -> Found:
    """Equal scores under log-likelihood; under generation both are worse, and the student drops."""
    teacher, generation = case.accuracy, case.accuracy * 0.95
    truths = (teacher, teacher, generation, generation * case.true_recovery)
    stratum = draw_scores(rng, case.documents, truths, case.correlation)
    data = BootstrapSample([stratum], [1.0], rng, draws=DRAWS)
    gap = percentile_interval(data.gap((1, 3), (0, 2)), data.gap_draws((1, 3), (0, 2)))
    values = stratum.values
    differs = (values[:, 2] - values[:, 3]) - (values[:, 0] - values[:, 1]) != 0
    return "gap", gap, generation * (1 - case.true_recovery), int(stratum.counts[differs].sum())


def _row(quantity: str, case: Case, tally: Tally, simulations: int) -> Coverage:
    coverage = tally.inside / tally.defined if tally.defined >= simulations / 2 else None
    few = tally.few / simulations
    narrowest = tally.narrowest if tally.defined else None
    holds = None
    if coverage is not None:
        holds = coverage >= 0.93 and (coverage <= 0.97 or few >= 0.5) and tally.narrowest > 0
    return Coverage(
        quantity,
        **asdict(case),
        simulations=simulations,
        defined=tally.defined / simulations,
        coverage=coverage,
        few=few,
        narrowest=narrowest,
        holds=holds,
    )


@dataclass(frozen=True, slots=True)
class GateCase:
    """A policy of rules on separate benchmarks."""

    metric: Literal["recovery", "gap"]
    rules: int
    documents: int
    """Documents of each benchmark."""
    accuracy: float
    """Of the teacher."""


GATES = (
    *(GateCase("recovery", 1, documents, 0.7) for documents in (200, 1000, 10_000)),
    *(GateCase("recovery", 5, documents, 0.7) for documents in (1000, 200)),
)
GATE_KEPT = 0.9
"""The recovery that gates demand, and (of what is written) that students on a gap's threshold have."""
GATE_CORRELATION = 0.6


@dataclass(frozen=True, slots=True)
class GateRow:
    """How often the gate failed a policy of several lines."""

    what: str
    metric: Literal["recovery", "gap"]
    rules: int
    documents: int
    accuracy: float
    simulations: int
    failed: float
    required: str
    holds: bool


def simulate_gate(case: GateCase, simulations: int = SIMULATIONS, seed: int = SEED) -> list[GateRow]:
    """False alarms for a student on every threshold, and power if one rule is at its MDE.

    Args:
        case: the policy.
        simulations: number of gates.
        seed: seed of the simulation.
    """
    key = [seed, len(case.metric), case.rules, case.documents, int(100 * case.accuracy)]
    rng = np.random.default_rng(key)
    alarms = sum(_fails(rng, case, [0.0] * case.rules) for _ in range(simulations))
    rng = np.random.default_rng([*key, 1])
    worse = [_detectable(rng, case), *[0.0] * (case.rules - 1)]
    caught = sum(_fails(rng, case, worse) for _ in range(simulations))
    false, power = alarms / simulations, caught / simulations
    return [
        GateRow(
            "false alarms",
            **asdict(case),
            simulations=simulations,
            failed=false,
            required="at most 5 %",
            holds=false <= 0.05,
        ),
        GateRow(
            "power",
            **asdict(case),
            simulations=simulations,
            failed=power,
            required="80 ± 5 %",
            holds=0.75 <= power <= 0.85,
        ),
    ]


def _measure(rng: np.random.Generator, case: GateCase, worse: float) -> Measurement:
    """Measure one rule for a student that is `worse` beyond the threshold, in the unit of the rule."""
    teacher = case.accuracy
    if case.metric == "recovery":
        truths = (teacher, teacher * (GATE_KEPT - worse))
        data = BootstrapSample(
            [draw_scores(rng, case.documents, truths, GATE_CORRELATION)], [1.0], rng, draws=GATE_DRAWS
        )
        draws = data.ratio_draws(1, 0)
        assert draws is not None  # the teacher is far above zero
        return Measurement(data.ratio(1, 0), draws, case.documents, ())
    both = (teacher, teacher, teacher, teacher * GATE_KEPT - worse / 100)
    data = BootstrapSample(
        [draw_scores(rng, case.documents, both, GATE_CORRELATION)], [1.0], rng, draws=GATE_DRAWS
    )
    columns = (1, 3), (0, 2)
    return Measurement(100 * data.gap(*columns), 100 * data.gap_draws(*columns), case.documents, ())


def _decisions(rng: np.random.Generator, case: GateCase, worse: Sequence[float]) -> list[Decision]:
    """Decide the rules for a student that is `worse` beyond each threshold."""
    measured = [_measure(rng, case, each) for each in worse]
    is_floor = case.metric == "recovery"
    threshold = GATE_KEPT if is_floor else 100 * case.accuracy * (1 - GATE_KEPT)
    return decide(measured, [threshold] * len(measured), [is_floor] * len(measured))


def _fails(rng: np.random.Generator, case: GateCase, worse: Sequence[float]) -> bool:
    """Whether a gate proves a regression."""
    return any(decision.outcome == REGRESSION for decision in _decisions(rng, case, worse))


def _detectable(rng: np.random.Generator, case: GateCase) -> float:
    """The minimum detectable effect reported by the gate for students that are worse by exactly that."""
    effect = 0.0
    for _ in range(3):
        stated = [
            decision.mde for _ in range(40) for decision in _decisions(rng, case, [effect] * case.rules)
        ]
        effect = float(np.mean(stated))
    return effect


def table(rows: Sequence[Coverage] | Sequence[GateRow]) -> str:
    """Format rows as CSV."""
    buffer = io.StringIO()
    flat = [asdict(row) for row in rows]
    writer = csv.DictWriter(buffer, list(flat[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return buffer.getvalue()


Row = TypeVar("Row", Coverage, GateRow)


def finished_rows(path: Path, kind: type[Row], simulations: int) -> list[Row]:
    """Rows of an interrupted run; each has its own seed and is reproducible, so it need not be repeated."""
    if not path.is_file():
        return []
    hints = get_type_hints(kind)
    rows = [
        kind(**{name: _read(text, hints[name]) for name, text in row.items()})
        for row in csv.DictReader(io.StringIO(path.read_text()))
    ]
    return [row for row in rows if row.simulations == simulations]


def _read(text: str, hint: Any) -> Any:
    if text == "":
        return None
    if text in ("True", "False"):
        return text == "True"
    return int(text) if hint is int else float(text) if hint in (float, float | None) else text


def summary(rows: Sequence[Coverage], gates: Sequence[GateRow]) -> str:
    """Summarize both tables in Markdown."""
    known = [row.coverage for row in rows if row.coverage is not None]
    widths = [row.narrowest for row in rows if row.coverage is not None and row.narrowest is not None]
    both: list[Coverage | GateRow] = [*rows, *gates]
    every = [row.holds for row in both if row.holds is not None]
    rules = [
        f"{sum(every)} of {len(every)} rows hold; {len(rows) - len(known)} more are undefined.",
        f"Coverage of 95 % intervals: {100 * min(known):.1f} to {100 * max(known):.1f} % over {len(known)} "
        f"rows; the narrowest interval is {100 * min(widths):.2f} points wide.",
    ]
    for what in ("false alarms", "power"):
        shares = [100 * row.failed for row in gates if row.what == what]
        required = next(row.required for row in gates if row.what == what)
        rules.append(f"Gate, {what}: {min(shares):.1f} to {max(shares):.1f} % ({required}).")
    rules.append(f"{rows[0].simulations:,} simulations a row; NumPy {np.__version__}.")
    return "".join(f"- {line}\n" for line in rules)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the grid and write coverage.csv, gate.csv and summary.md; 0 if every row holds, else 1.

    Called again with the same folder, it resumes.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.parity.interval_coverage", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the three files")
    parser.add_argument(
        "--simulations", type=int, default=SIMULATIONS, help="per case (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    rows = finished_rows(options.out / "coverage.csv", Coverage, options.simulations)
    there = {Case(row.documents, row.accuracy, row.true_recovery, row.correlation) for row in rows}
    for case in progress([case for case in GRID if case not in there], what="coverage"):
        rows += simulate(case, options.simulations)
        write_text(options.out / "coverage.csv", table(rows))
    gates = finished_rows(options.out / "gate.csv", GateRow, options.simulations)
    decided = {GateCase(row.metric, row.rules, row.documents, row.accuracy) for row in gates}
    for gate in progress([gate for gate in GATES if gate not in decided], what="gate"):
        gates += simulate_gate(gate, options.simulations)
        write_text(options.out / "gate.csv", table(gates))
    text = summary(rows, gates)
    write_text(options.out / "summary.md", text)
    both: list[Coverage | GateRow] = [*rows, *gates]
    failing = [row for row in both if row.holds is False]
    for row in failing:
        print(row)
    print(text, end="")
    return 1 if failing else 0


if __name__ == "__main__":
    exit_with(main)
