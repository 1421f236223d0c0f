"""Scores of hybrids by mixer, softmax layers and seed: layers selected with one mixer, students of another.

    python -m evalsuite.reports.studies.selection.transfer RUN … --suite pocket-recall --out students.csv

reads run folders of `evalsuite run` and writes a row per student: its mixer and softmax layers, the share of
right answers by group of benchmarks and protocol, and the held-out KL at the end of its training, if the
recipe had a `validation`.

Exit codes: 0 done, 64 or more an error.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evalsuite.cli.exit_codes import guarded
from evalsuite.foundation import DataError, read_jsonl, write_csv
from evalsuite.foundation.parser import Parser
from evalsuite.reports.run import read_manifest
from evalsuite.reports.studies.selection.tables import groups_of, plain_scores, read_answers
from evalsuite.tasks.benchmark import Benchmark

NAME = "evalsuite.reports.studies.selection.transfer"


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


def main(argv: Sequence[str] | None = None) -> int:
    """Write the table; errors return 64 or more."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog=f"python -m {NAME}", description=__doc__, formatter_class=raw)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--suite", default="pocket-recall")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args(argv)

    def call() -> int:
        groups = groups_of(arguments.suite)
        rows = [row for run in arguments.runs for row in student_rows(run, groups)]
        rows.sort(key=lambda row: (row["mixer"], len(row["layers"]), row["layers"], row["seed"]))
        columns = list(dict.fromkeys(key for row in rows for key in row))
        write_csv(arguments.out, columns, [[row.get(key, "") for key in columns] for row in rows])
        return 0

    return guarded(NAME, call, resumable=False)


if __name__ == "__main__":
    sys.exit(main())
