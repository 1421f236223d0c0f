"""Recall and LongBench: a run's scores beside lm-eval's own metrics, on the same written answers.

    python -m evalsuite.evaluator.beside_written RUN

`evalsuite.evaluator.beside` has the benchmarks of lm-eval and EvalScope; here are those whose prompts are
ours and whose metrics lm-eval has too (`ruler`, `longbench`, `fda`, `swde`, `squad_completion`). Each
recorded response is given to lm-eval's function as it is; LongBench's few-shot sets are given their first
line, where lm-eval stops them. LongBench's metrics need lm-eval's extra: pip install "lm_eval[longbench]".
"""

import argparse
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evalsuite.evaluator.asking import benchmarks_of
from evalsuite.evaluator.beside import Row, publish
from evalsuite.evaluator.layout import read_documents, read_index
from evalsuite.foundation import MissingDependencyError, read_jsonl
from evalsuite.protocols.longbench import classes_of, first_line
from evalsuite.reports.records import records_path

Theirs = Callable[[Mapping[str, Any], str], float]
_LONGBENCH = ("qa_f1", "qa_f1_zh", "rouge", "rouge_zh", "count", "retrieval", "retrieval_zh", "code_sim")
_LINES = {"qa_f1_line": "qa_f1", "rouge_line": "rouge", "classification": "classification"}


def theirs(judge: str) -> tuple[str, Theirs] | None:
    """Return our metric that lm-eval has for a judge of ours, and its function; None if it has none.

    Raises:
        MissingDependencyError: lm-eval's extra for LongBench is not installed.
    """
    if judge in ("all_found", "any_found"):
        ruler = _module("lm_eval.tasks.ruler.common_utils")
        metric, function = "accuracy", ruler.process_results
        if judge == "any_found":
            metric, function = "share", ruler.process_results_part

        def matched(row: Mapping[str, Any], response: str) -> float:
            return float(function({"max_length": 4096, "outputs": row["answers"]}, [response])["4096"])

        return metric, matched
    if judge == "contains":
        fda = _module("lm_eval.tasks.fda.task")
        return "contains", lambda row, response: float(fda.contains_score(response, [row["value"].strip()]))
    name = _LINES.get(judge, judge)
    if judge not in (*_LONGBENCH, *_LINES):
        return None
    function = getattr(_module("lm_eval.tasks.longbench.metrics"), f"get_{name}_score")

    def scored(row: Mapping[str, Any], response: str) -> float:
        read = first_line(response) if judge in _LINES else response
        return float(function(_classes(row), [read])[f"{name}_score"])

    return name, scored


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingDependencyError(f"{name}: {str(error).strip()}") from error


def _classes(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with its classes as a list: lm-eval would read a list kept as text letter by letter."""
    found = dict(row)
    return found | {"all_classes": classes_of(found)} if found.get("all_classes") else found


def beside_written(run: Path) -> Iterator[Row]:
    """Compare every benchmark of a judged run whose metric lm-eval has, for each context and checkpoint.

    Raises:
        DataError: records or documents that are not sound.
        MissingDependencyError: as `theirs`.
    """
    index = read_index(run)
    benchmarks = benchmarks_of(index)
    for cell in index.cells:
        how = benchmarks[cell.benchmark].generation
        found = theirs(how.judge or "") if cell.protocol == "generation" and how is not None else None
        if found is None:
            continue
        metric, function = found
        rows = {document.doc_id: document.row for document in read_documents(run, cell.benchmark)}
        scores: dict[tuple[str, int | None], list[tuple[float, float]]] = {}
        for record in read_jsonl(records_path(run, cell.benchmark, "generation")):
            if record["outcome"] != "error":
                alone = function(rows[record["doc_id"]], record["detail"]["response"])
                key = record["checkpoint"], record["context"]
                scores.setdefault(key, []).append((record["values"][metric], alone))
        for (_, context), pairs in scores.items():
            yield Row(
                benchmark=cell.benchmark if context is None else f"{cell.benchmark}@{context}",
                protocol="generation",
                metric=metric,
                shots=0,
                documents=len(pairs),
                ours=sum(mine for mine, _ in pairs) / len(pairs),
                alone=sum(alone for _, alone in pairs) / len(pairs),
                harness="lm-eval",
                # Document by document, not only on average.
                equal=all(abs(mine - alone) < 1e-9 for mine, alone in pairs),
            )


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, print and write; exits with 1 where a document's score differs."""
    parser = argparse.ArgumentParser(
        prog="python -m evalsuite.evaluator.beside_written",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, help="a run folder, judged")
    parser.add_argument("--out", type=Path, help="CSV to write (default: RUN/beside_written.csv)")
    arguments = parser.parse_args(argv)
    out = arguments.out or arguments.run / "beside_written.csv"
    return publish(beside_written(arguments.run), out)


if __name__ == "__main__":
    sys.exit(main())
