"""Agreement and retained answers of a run, counted by plain loops and by the reports.

    python -m evalsuite.reports.studies.leaderboards.agreement_counts RUN --benchmarks arc_easy piqa \\
        --expect kda 78.1 81.1

Counts per benchmark come from the parquet files with pyarrow alone: the share of documents on which the
choice of `acc`, the highest summed log-probability, is the teacher's, and the share of the teacher's right
answers (by the plan's metric) that stay right. Averages are unweighted means over the benchmarks; benchmarks
with a single choice do not enter agreement. Exit code: 0 if the reports' points equal the counts to 1e-9 for
every student and are within 0.1 points of every `--expect LABEL AGREEMENT RETAINED`; 1 if not; 64 or more if
nothing was compared.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from evalsuite.cli.exit_codes import guarded
from evalsuite.foundation import read_json
from evalsuite.foundation.parser import Parser
from evalsuite.reports.analysis.result_tensor import load_result_tensor
from evalsuite.reports.measures.agreement.rows import AgreementPool

EQUAL, CLOSE = 1e-9, 0.1
"""Largest difference from the counts, a fraction, and from an expected value, in points."""

Counts = dict[str, tuple[float, float]]
"""Student → agreement and retained, fractions."""


def counted(run: Path, benchmarks: Sequence[str]) -> Counts:
    """Count with loops over the rows of the score files."""
    plan = read_json(run / "run.json")
    metrics = {
        each["name"]: each["protocols"]["loglikelihood"]["metric"]
        for each in plan["benchmarks"]
        if "loglikelihood" in each["protocols"]
    }
    checkpoints = {each["weights_id"]: each for each in plan["checkpoints"]}
    (teacher,) = (each["label"] for each in plan["checkpoints"] if each["role"] == "teacher")
    agreement: dict[str, list[float]] = {}
    retained: dict[str, list[float]] = {}
    for name in benchmarks:
        column = f"value.{metrics[name]}"
        rows: dict[str, dict[str, tuple[int, bool]]] = {}
        for path in sorted((run / "scores").glob(f"{name}.loglikelihood.*.parquet")):
            table = pq.read_table(path, columns=["weights_id", "doc_id", "choice.acc", column]).to_pylist()
            label = checkpoints[table[0]["weights_id"]]["label"]
            rows[label] = {row["doc_id"]: (row["choice.acc"], row[column] == 1.0) for row in table}
        theirs = rows.pop(teacher)
        has_choices = any(choice > 0 for each in (*rows.values(), theirs) for choice, _ in each.values())
        for label, mine in rows.items():
            same = kept = right = 0
            for document, (choice, is_right) in theirs.items():
                same += mine[document][0] == choice
                right += is_right
                kept += is_right and mine[document][1]
            if has_choices:
                agreement.setdefault(label, []).append(same / len(theirs))
            retained.setdefault(label, []).append(kept / right)
    return {
        label: (sum(agreement[label]) / len(agreement[label]), sum(kept) / len(kept))
        for label, kept in retained.items()
    }


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
    by_loops, by_reports = (each(arguments.run, arguments.benchmarks) for each in (counted, reported))
    if not by_loops or set(by_loops) != set(by_reports):
        print(f"students differ: {sorted(by_loops)} and {sorted(by_reports)}", file=sys.stderr)
        return 65
    differs = False
    expected = {label: (float(one), float(two)) for label, one, two in arguments.expect}
    for label in [*by_loops, *(set(expected) - set(by_loops))]:
        if label not in by_loops:
            print(f"{label}: not in the run")
            differs = True
            continue
        loops, reports = by_loops[label], by_reports[label]
        notes = [f"reports {100 * b:.6f}" for a, b in zip(loops, reports, strict=True) if abs(a - b) > EQUAL]
        notes += [
            f"expected {wanted}"
            for a, wanted in zip(loops, expected.get(label, loops), strict=True)
            if label in expected and abs(100 * a - wanted) > CLOSE
        ]
        differs |= bool(notes)
        counts = f"agreement {100 * loops[0]:.2f}, retained {100 * loops[1]:.2f}"
        print(f"{label}: {counts} {'; '.join(notes)}".rstrip())
    return int(differs)


if __name__ == "__main__":
    sys.exit(guarded("agreement_counts", main, resumable=False))
