"""Do the intervals hold what they promise, and does the gate? Simulations with a known truth.

    python -m evalsuite.reports.coverage --out reports/published/statistics

Each case throws right-or-wrong answers of a teacher and a student whose true scores and correlation are
known, asks the very code of the reports for its intervals, and counts how often the truth lies inside. The
gate is thrown against students that stand on its threshold (false alarms) and at its detectable effect
(power). One run writes all three files; with 4,000 simulations a case it takes about half an hour on one
core.
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
from evalsuite.reports.dice import answers, contested
from evalsuite.reports.gating.decide import REGRESSION, Ruling, rule
from evalsuite.reports.gating.measure import Measured
from evalsuite.reports.recovery import centred_recovery, recovery
from evalsuite.reports.resampled import Resampled
from evalsuite.reports.statistics.bootstrap import Stratum, percentile_interval
from evalsuite.reports.statistics.interval import Interval
from evalsuite.reports.statistics.paired import FEW

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
        Case, itertools.product((200, 1000, 10_000), (0.3, 0.6, 0.9), (0.9, 1.0), (0.0, 0.5, 0.9))
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
    holds: bool | None
    """93 to 97 %, or above it where mostly few documents disagree, and never without width; None where the
    coverage is."""


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
    """A policy of lines that each judge a benchmark of their own."""

    metric: Literal["recovery", "gap"]
    lines: int
    documents: int
    """Of each benchmark."""
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
    lines: int
    documents: int
    accuracy: float
    simulations: int
    failed: float
    promise: str
    holds: bool


def simulate_gate(case: GateCase, simulations: int = SIMULATIONS, seed: int = SEED) -> list[GateRow]:
    """False alarms of a student that stands on every threshold, and power where one line is worse.

    Args:
        case: the policy.
        simulations: number of gates.
        seed: of the dice.
    """
    key = [seed, len(case.metric), case.lines, case.documents, int(100 * case.accuracy)]
    rng = np.random.default_rng(key)
    alarms = sum(_fails(rng, case, [0.0] * case.lines) for _ in range(simulations))
    rng = np.random.default_rng([*key, 1])
    worse = [_detectable(rng, case), *[0.0] * (case.lines - 1)]
    caught = sum(_fails(rng, case, worse) for _ in range(simulations))
    false, power = alarms / simulations, caught / simulations
    return [
        GateRow(
            "false alarms",
            **asdict(case),
            simulations=simulations,
            failed=false,
            promise="at most 5 %",
            holds=false <= 0.05,
        ),
        GateRow(
            "power",
            **asdict(case),
            simulations=simulations,
            failed=power,
            promise="80 ± 5 %",
            holds=0.75 <= power <= 0.85,
        ),
    ]


def _line(rng: np.random.Generator, case: GateCase, worse: float) -> Measured:
    """One line as the gate measures it, for a student `worse` beyond the threshold in the line's unit."""
    teacher = case.accuracy
    if case.metric == "recovery":
        truths = (teacher, teacher * (GATE_KEPT - worse))
        data = Resampled(
            [answers(rng, case.documents, truths, GATE_CORRELATION)], [1.0], rng, draws=GATE_DRAWS
        )
        draws = data.ratio_draws(1, 0)
        assert draws is not None  # the teacher is far above zero
        return Measured(data.ratio(1, 0), draws, case.documents, ())
    both = (teacher, teacher, teacher, teacher * GATE_KEPT - worse / 100)
    data = Resampled([answers(rng, case.documents, both, GATE_CORRELATION)], [1.0], rng, draws=GATE_DRAWS)
    columns = (1, 3), (0, 2)
    return Measured(100 * data.gap(*columns), 100 * data.gap_draws(*columns), case.documents, ())


def _rulings(rng: np.random.Generator, case: GateCase, worse: Sequence[float]) -> list[Ruling]:
    """What a gate makes of a student that is `worse` beyond each line's threshold."""
    measured = [_line(rng, case, each) for each in worse]
    is_floor = case.metric == "recovery"
    threshold = GATE_KEPT if is_floor else 100 * case.accuracy * (1 - GATE_KEPT)
    return rule(measured, [threshold] * len(measured), [is_floor] * len(measured))


def _fails(rng: np.random.Generator, case: GateCase, worse: Sequence[float]) -> bool:
    """Whether a gate proves a regression."""
    return any(ruling.outcome == REGRESSION for ruling in _rulings(rng, case, worse))


def _detectable(rng: np.random.Generator, case: GateCase) -> float:
    """The minimum detectable effect as the gate states it, of students that are worse by just that."""
    effect = 0.0
    for _ in range(3):
        stated = [
            ruling.detectable for _ in range(40) for ruling in _rulings(rng, case, [effect] * case.lines)
        ]
        effect = float(np.mean(stated))
    return effect


def table(rows: Sequence[Coverage] | Sequence[GateRow]) -> str:
    """CSV of the rows."""
    buffer = io.StringIO()
    flat = [asdict(row) for row in rows]
    writer = csv.DictWriter(buffer, list(flat[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return buffer.getvalue()


Row = TypeVar("Row", Coverage, GateRow)


def kept_rows(path: Path, kind: type[Row], simulations: int) -> list[Row]:
    """What an interrupted run left: rows are thrown from seeds of their own, so each would come out again."""
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
    """What the tables come to, in Markdown."""
    known = [row.coverage for row in rows if row.coverage is not None]
    widths = [row.narrowest for row in rows if row.coverage is not None and row.narrowest is not None]
    both: list[Coverage | GateRow] = [*rows, *gates]
    every = [row.holds for row in both if row.holds is not None]
    lines = [
        f"{sum(every)} of {len(every)} rows hold; {len(rows) - len(known)} more are undefined.",
        f"Coverage of 95 % intervals: {100 * min(known):.1f} to {100 * max(known):.1f} % over {len(known)} "
        f"rows; the narrowest interval is {100 * min(widths):.2f} points wide.",
    ]
    for what in ("false alarms", "power"):
        shares = [100 * row.failed for row in gates if row.what == what]
        promise = next(row.promise for row in gates if row.what == what)
        lines.append(f"Gate, {what}: {min(shares):.1f} to {max(shares):.1f} % ({promise}).")
    lines.append(f"{rows[0].simulations:,} simulations a row; NumPy {np.__version__}.")
    return "".join(f"- {line}\n" for line in lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the grid and write coverage.csv, gate.csv and summary.md; 0 if every row holds, else 65.

    Called again with the same folder it goes on where it was interrupted.
    """
    parser = argparse.ArgumentParser(prog="python -m evalsuite.reports.coverage", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the three files")
    parser.add_argument(
        "--simulations", type=int, default=SIMULATIONS, help="per case (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    rows = kept_rows(options.out / "coverage.csv", Coverage, options.simulations)
    there = {Case(row.documents, row.accuracy, row.kept, row.correlation) for row in rows}
    for case in progress([case for case in GRID if case not in there], what="coverage"):
        rows += simulate(case, options.simulations)
        write_text(options.out / "coverage.csv", table(rows))
    gates = kept_rows(options.out / "gate.csv", GateRow, options.simulations)
    decided = {GateCase(row.metric, row.lines, row.documents, row.accuracy) for row in gates}
    for gate in progress([gate for gate in GATES if gate not in decided], what="gate"):
        gates += simulate_gate(gate, options.simulations)
        write_text(options.out / "gate.csv", table(gates))
    said = summary(rows, gates)
    write_text(options.out / "summary.md", said)
    both: list[Coverage | GateRow] = [*rows, *gates]
    failing = [row for row in both if row.holds is False]
    for row in failing:
        print(row)
    print(said, end="")
    return 65 if failing else 0


if __name__ == "__main__":
    raise SystemExit(main())
