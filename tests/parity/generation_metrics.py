"""Scores of RULER, LongBench and recall benchmarks against lm-eval's metric functions, on the same responses.

    python tests/parity/generation_metrics.py RUN

`harness_scores.py` covers the benchmarks of lm-eval and EvalScope; this study covers those with our prompts
whose metrics lm-eval has too (`ruler`, `longbench`, `fda`, `swde`, `squad_completion`). Every stored response
goes to lm-eval's function as it is; for LongBench's few-shot sets, its first line, where lm-eval stops.
LongBench's metrics need lm-eval's extra: pip install "lm_eval[longbench]".

Exit codes: 0 every document has the same score, 1 one has not, 64 or more an error.
"""

import argparse
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from itertools import chain

from evalsuite.cli.exit_codes import guarded
from evalsuite.evaluation.plan import benchmarks_in
from evalsuite.evaluation.run_paths import cells_of, read_built, read_documents
from evalsuite.foundation import MissingDependencyError
from evalsuite.foundation.parser import Parser
from evalsuite.foundation.words import first_line
from evalsuite.protocols.scorers.longbench import classes_of
from evalsuite.reports.records.score_files import read_rows, score_paths
from tests.parity.harness_scores import Row, publish

Metric = Callable[[Mapping[str, Any], str], float]
_LONGBENCH = ("qa_f1", "qa_f1_zh", "rouge", "rouge_zh", "count", "retrieval", "retrieval_zh", "code_sim")
_FIRST_LINE = {"qa_f1_line": "qa_f1", "rouge_line": "rouge", "classification": "classification"}


def lm_eval_metric(scorer: str) -> tuple[str, Metric] | None:
    """Return our metric's name and lm-eval's function for one of our scorers; None if lm-eval has none.

    Raises:
        MissingDependencyError: lm-eval's extra for LongBench is not installed.
    """
    if scorer in ("all_found", "any_found"):
        ruler = _module("lm_eval.tasks.ruler.common_utils")
        metric, function = "accuracy", ruler.process_results
        if scorer == "any_found":
            metric, function = "share", ruler.process_results_part

        def matched(row: Mapping[str, Any], response: str) -> float:
            return float(function({"max_length": 4096, "outputs": row["answers"]}, [response])["4096"])

        return metric, matched
    if scorer == "contains":
        fda = _module("lm_eval.tasks.fda.task")
        return "contains", lambda row, response: float(fda.contains_score(response, [row["value"].strip()]))
    name = _FIRST_LINE.get(scorer, scorer)
    if scorer not in (*_LONGBENCH, *_FIRST_LINE):
        return None
    function = getattr(_module("lm_eval.tasks.longbench.metrics"), f"get_{name}_score")

    def scored(row: Mapping[str, Any], response: str) -> float:
        text = first_line(response) if scorer in _FIRST_LINE else response
        return float(function(_with_class_list(row), [text])[f"{name}_score"])

    return name, scored


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingDependencyError(f"{name}: {str(error).strip()}") from error


def _with_class_list(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row with its classes as a list: lm-eval would iterate over the letters of a string."""
    found = dict(row)
    return found | {"all_classes": classes_of(found)} if found.get("all_classes") else found


def compare(run: Path) -> Iterator[Row]:
    """Compare every benchmark of a run whose metric lm-eval has, for each context and checkpoint.

    Raises:
        DataError: invalid score rows or documents.
        MissingDependencyError: as `lm_eval_metric`.
    """
    manifest = read_built(run)
    benchmarks = benchmarks_in(manifest)
    for cell in cells_of(manifest):
        spec = benchmarks[cell.benchmark].generation
        usable = cell.protocol == "generation" and spec is not None
        found = lm_eval_metric(spec.scorer or "") if usable and spec is not None else None
        if found is None:
            continue
        metric, function = found
        rows = {document.doc_id: document.row for document in read_documents(run, cell.benchmark)}
        scores: dict[tuple[str, int | None], list[tuple[float, float]]] = {}
        for score in chain(
            *(read_rows(path).values() for path in score_paths(run, cell.benchmark, "generation"))
        ):
            if score["outcome"] != "error":
                reference = function(rows[score["doc_id"]], score["detail"]["response"])
                key = score["checkpoint"], score["context"]
                scores.setdefault(key, []).append((score["values"][metric], reference))
        for (_, context), pairs in scores.items():
            yield Row(
                benchmark=cell.benchmark if context is None else f"{cell.benchmark}@{context}",
                protocol="generation",
                metric=metric,
                num_fewshot=0,
                documents=len(pairs),
                ours=sum(ours for ours, _ in pairs) / len(pairs),
                reference=sum(reference for _, reference in pairs) / len(pairs),
                harness="lm-eval",
                # Per document, not only on average.
                equal=all(abs(ours - reference) < 1e-9 for ours, reference in pairs),
            )


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, print and write; return the exit code."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run folder with scores")
    parser.add_argument("--out", type=Path, help="CSV to write (default: RUN/generation_metrics.csv)")
    arguments = parser.parse_args(argv)
    return int(not publish(compare(arguments.run), arguments.out or arguments.run / "generation_metrics.csv"))


if __name__ == "__main__":
    sys.exit(guarded("generation_metrics", main, resumable=False))
