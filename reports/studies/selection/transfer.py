"""Scores of hybrids by mixer, softmax layers and seed: layers selected with one mixer, students of another.

    python -m evalsuite.reports.studies.selection.transfer RUN … --suite pocket-recall --out students.csv

reads run folders of `evalsuite run` and writes a row per student: its mixer and softmax layers, the share of
right answers by group of benchmarks and protocol, and the held-out KL at the end of its training, if the
recipe had a `validation`.

Of one run, `--scores scores.csv` has the scores of every checkpoint by benchmark and context, and
`--differences differences.csv` paired differences of students with the same number of softmax layers, which
differ in these layers alone or in their mixer alone. Both have means over all documents of a context, too,
and over those of the benchmarks on which the teacher has at least half of the score.

Exit codes: 0 done, 64 or more an error.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from evalsuite.cli.exit_codes import guarded
from evalsuite.foundation import ConfigError, DataError, read_jsonl, write_csv
from evalsuite.foundation.parser import Parser
from evalsuite.reports.run import read_manifest
from evalsuite.reports.studies.selection.tables import (
    BENCHMARK_COLUMNS,
    Answers,
    by_benchmark,
    ends,
    groups_of,
    paired_interval,
    plain_scores,
    read_answers,
)
from evalsuite.tasks.benchmark import Benchmark

NAME = "evalsuite.reports.studies.selection.transfer"
Cell = tuple[str, str, int | None]
ALL = "all"
ABLE = "teacher at least half"
DIFFERENCE_COLUMNS = (
    *("first", "second", "benchmark", "protocol", "context", "documents"),
    *("difference", "low", "high"),
)


def student_rows(run: Path, groups: dict[str, list[Benchmark]]) -> list[dict[str, Any]]:
    """One row per student of a run folder; scores are shares of its documents, KL is in nats per token.

    Raises:
        DataError: a student with several kinds of recurrent layers, or missing scores.
    """
    answers, rows = read_answers(run, groups), []
    for checkpoint in read_manifest(run).checkpoints:
        if checkpoint.role != "student":
            continue
        mixers = checkpoint.lineage["mixers"]
        recurrent = {mixer for mixer in mixers if mixer != "softmax"}
        if len(recurrent) != 1:
            raise DataError(f"{run}: {checkpoint.label} has layers of {len(recurrent)} mixers, not of one")
        curve = read_jsonl(run / "training" / f"{checkpoint.label}.jsonl")
        measured = [row["validation_kl"] for row in curve if "validation_kl" in row]
        found = plain_scores(answers[checkpoint.label], groups)
        rows.append(
            {
                "seed": checkpoint.lineage["seed"],
                "mixer": recurrent.pop(),
                "layers": " ".join(str(layer) for layer, mixer in enumerate(mixers) if mixer == "softmax"),
                "kl": f"{measured[-1]:.4f}" if measured else "",
                **{f"{group} {protocol}": f"{score.point:.4f}" for (group, protocol), score in found.items()},
            }
        )
    return rows


def by_cell(answers: Answers) -> dict[Cell, dict[str, float]]:
    """(benchmark, protocol, context) → scores of its documents."""
    cells: dict[Cell, dict[str, float]] = {}
    for (benchmark, protocol, context, document), mark in answers.items():
        cells.setdefault((benchmark, protocol, context), {})[document] = mark
    return cells


def with_means(answers: Mapping[str, Answers], teacher: str) -> dict[str, Answers]:
    """Add the documents of all benchmarks as one more, and those on which the teacher has at least half."""
    able = {
        cell for cell, marks in by_cell(answers[teacher]).items() if sum(marks.values()) >= len(marks) / 2
    }
    added = {}
    for label, given in answers.items():
        means: dict[str, Answers] = {ALL: {}, ABLE: {}}
        for (benchmark, protocol, context, document), mark in given.items():
            for name, found in means.items():
                if name == ALL or (benchmark, protocol, context) in able:
                    found[name, protocol, context, f"{benchmark} {document}"] = mark
        added[label] = given | means[ALL] | means[ABLE]
    return added


def difference_rows(answers: Mapping[str, Answers], mixers: Mapping[str, Sequence[str]]) -> list[list[Any]]:
    """Rows of `DIFFERENCE_COLUMNS`, first minus second, with Tango's interval over documents.

    Args:
        answers: label → scores, on the same documents.
        mixers: label of a student → mixer of each layer.
    """
    rows = []
    for first, second in combinations(mixers, 2):
        one, other = mixers[first], mixers[second]
        same_layers = all((a == "softmax") == (b == "softmax") for a, b in zip(one, other, strict=True))
        if one.count("softmax") != other.count("softmax") or same_layers == (set(one) == set(other)):
            continue
        theirs = by_cell(answers[second])
        for cell, marks in by_cell(answers[first]).items():
            differences = [mark - theirs[cell][document] for document, mark in marks.items()]
            rows.append([first, second, *cell, len(differences), *ends(paired_interval(differences))])
    return rows


def write_benchmarks(
    run: Path, groups: dict[str, list[Benchmark]], scores: Path | None, differences: Path | None
) -> None:
    """Write the tables by benchmark of one run, where a file is named."""
    checkpoints = read_manifest(run).checkpoints
    (teacher,) = (each.label for each in checkpoints if each.role == "teacher")
    found = read_answers(run, groups)
    answers = with_means({each.label: found[each.label] for each in checkpoints}, teacher)
    if scores:
        write_csv(scores, BENCHMARK_COLUMNS, by_benchmark(answers))
    if differences:
        mixers = {each.label: each.lineage["mixers"] for each in checkpoints if each.role == "student"}
        write_csv(differences, DIFFERENCE_COLUMNS, difference_rows(answers, mixers))


def main(argv: Sequence[str] | None = None) -> int:
    """Write the table; errors return 64 or more."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog=f"python -m {NAME}", description=__doc__, formatter_class=raw)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--suite", default="pocket-recall")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scores", type=Path, help="scores of every checkpoint of one run by benchmark")
    parser.add_argument("--differences", type=Path, help="paired differences of its students")
    arguments = parser.parse_args(argv)

    def call() -> int:
        groups = groups_of(arguments.suite)
        if arguments.scores or arguments.differences:
            if len(arguments.runs) > 1:
                raise ConfigError("--scores and --differences take one run")
            write_benchmarks(arguments.runs[0], groups, arguments.scores, arguments.differences)
        rows = [row for run in arguments.runs for row in student_rows(run, groups)]
        rows.sort(key=lambda row: (row["mixer"], len(row["layers"]), row["layers"], row["seed"]))
        columns = list(dict.fromkeys(key for row in rows for key in row))
        write_csv(arguments.out, columns, [[row.get(key, "") for key in columns] for row in rows])
        return 0

    return guarded(NAME, call, resumable=False)


if __name__ == "__main__":
    sys.exit(main())
