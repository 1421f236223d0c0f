"""Agreement and retained answers of a run, counted by pandas and by the reports.

    python -m evalsuite.reports.studies.leaderboards.agreement_counts RUN --benchmarks arc_easy piqa \\
        --expect kda 78.1 81.1

Counts per benchmark come from the parquet files alone: the share of documents on which the
choice of `acc`, the highest summed log-probability, is the teacher's, and the share of the teacher's right
answers (by the plan's metric) that stay right. Averages are unweighted means over the benchmarks; benchmarks
with a single choice do not enter agreement. Exit code: 0 if the reports' points equal the counts to 1e-9 for
every student and are within 0.1 points of every `--expect LABEL AGREEMENT RETAINED`; 1 if not; 64 or more if
nothing was compared.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from evalsuite.cli.exit_codes import guarded
from evalsuite.foundation import read_json
from evalsuite.foundation.parser import Parser
from evalsuite.reports.analysis.result_tensor import load_result_tensor
from evalsuite.reports.measures.agreement.rows import AgreementPool
from evalsuite.reports.studies.leaderboards.leaderboard_numbers import (
    agreement,
    choices_of,
    macro,
    retained,
    scores_of,
)

EQUAL, CLOSE = 1e-9, 0.1
"""Largest difference from the counts, a fraction, and from an expected value, in points."""

Counts = dict[str, tuple[float, float]]
"""Student → agreement and retained, fractions."""


def counted(run: Path, benchmarks: Sequence[str]) -> Counts:
    """Count with pandas, from the score files alone."""
    scores, choices = scores_of(run, benchmarks), choices_of(run, benchmarks)
    (teacher,) = (
        each["label"] for each in read_json(run / "run.json")["checkpoints"] if each["role"] == "teacher"
    )
    students = macro(scores).index.drop(teacher)
    return {each: (agreement(choices, each, teacher), retained(scores, each, teacher)) for each in students}


def reported(run: Path, benchmarks: Sequence[str]) -> Counts:
    """The same by the code of the reports."""
    tensor = load_result_tensor([run])
    (teacher,) = (i for i, each in enumerate(tensor.checkpoints) if each.is_teacher)
    pool = AgreementPool(tensor, "loglikelihood", teacher)
    cells = [i for i, cell in enumerate(pool.cells) if cell.benchmark.name in benchmarks]
    found = {}
    for member in pool.members:
        agreement, retained = (pool.contrast(measure, member, cells) for measure in ("agreement", "retained"))
        if agreement is not None and retained is not None:
            found[tensor.checkpoints[member].label] = (agreement.point, retained.point)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, print one line per student, and return the exit code."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--benchmarks", nargs="+", required=True, metavar="NAME")
    parser.add_argument(
        "--expect", nargs=3, action="append", default=[], metavar=("LABEL", "AGREEMENT", "RETAINED")
    )
    arguments = parser.parse_args(argv)
    by_pandas, by_reports = (each(arguments.run, arguments.benchmarks) for each in (counted, reported))
    if not by_pandas or set(by_pandas) != set(by_reports):
        print(f"students differ: {sorted(by_pandas)} and {sorted(by_reports)}", file=sys.stderr)
        return 65
    differs = False
    expected = {label: (float(one), float(two)) for label, one, two in arguments.expect}
    for label in [*by_pandas, *(set(expected) - set(by_pandas))]:
        if label not in by_pandas:
            print(f"{label}: not in the run")
            differs = True
            continue
        counts, reports = by_pandas[label], by_reports[label]
        notes = [f"reports {100 * b:.6f}" for a, b in zip(counts, reports, strict=True) if abs(a - b) > EQUAL]
        notes += [
            f"expected {wanted}"
            for a, wanted in zip(counts, expected.get(label, counts), strict=True)
            if label in expected and abs(100 * a - wanted) > CLOSE
        ]
        differs |= bool(notes)
        shown = f"agreement {100 * counts[0]:.2f}, retained {100 * counts[1]:.2f}"
        print(f"{label}: {shown} {'; '.join(notes)}".rstrip())
    return int(differs)


if __name__ == "__main__":
    sys.exit(guarded("agreement_counts", main, resumable=False))
