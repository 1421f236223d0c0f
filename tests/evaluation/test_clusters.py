"""The cluster column of a benchmark: in its data, its documents, the plan and every score row, or refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from evalsuite.evaluation.run_paths import documents_path
from evalsuite.foundation import EvalsuiteError, read_json
from evalsuite.foundation.strict import parse
from evalsuite.reports import compare
from evalsuite.reports.records.reading import read_run_scores
from evalsuite.reports.records.score_files import score_paths
from evalsuite.tasks.benchmark import Benchmark
from tests.evaluation.runs import evaluate_quietly

ROWS = [
    {"goal": f"goal {n}", "sol1": "do", "sol2": "do not", "label": n % 2, "passage": f"p{n // 4}"}
    for n in range(12)
]
Evaluate = Callable[..., Path]


@pytest.fixture
def run(crew: Any, tmp_path: Path) -> Evaluate:
    """Evaluate two checkpoints on a benchmark of a user, over frozen rows."""

    def make(rows: list[dict[str, Any]] = ROWS, **source: str) -> Path:
        benchmark = {
            "name": "passages",
            "title": "Passages",
            "category": "reasoning",
            "license": "MIT",
            "citation": "none",
            "source": {"dataset": "me/passages", "split": "test", "cluster_column": "passage"} | source,
            "loglikelihood": {"task": "piqa/piqa.yaml", "metric": "acc"},
        }
        (tmp_path / "passages.yaml").write_text(yaml.safe_dump(benchmark))
        (tmp_path / "s.yaml").write_text("name: s\ntitle: S\nbenchmarks: [passages.yaml]\n")
        frozen = tmp_path / "data" / "me__passages" / "default" / "test.parquet"
        frozen.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), frozen)
        evaluate_quietly(
            suite=tmp_path / "s.yaml", checkpoints=["a", "b"], out=tmp_path / "run", data=tmp_path / "data"
        )
        return tmp_path / "run"

    return make


def score_again(run: Path) -> None:
    evaluate_quietly(suite=run.parent / "s.yaml", out=run, phases=("score",))


def without_clusters(path: Path) -> None:
    """Remove the clusters of a score file, whose metadata stays."""
    table = pq.read_table(path)
    at = table.column_names.index("cluster")
    pq.write_table(table.set_column(at, "cluster", pa.nulls(len(table), pa.string())), path)


def test_plan_names_the_column_and_score_rows_their_cluster(run: Evaluate) -> None:
    folder = run()
    (planned,) = read_json(folder / "run.json")["benchmarks"]
    assert planned.get("cluster_column") == "passage"
    assert read_run_scores(folder, "passages", "loglikelihood")["cluster"].nunique() == 3


def test_score_rows_without_cluster_are_refused_until_scored_again(run: Evaluate, tmp_path: Path) -> None:
    folder = run()
    files = {path: path.read_bytes() for path in score_paths(folder, "passages", "loglikelihood")}
    for path in files:
        without_clusters(path)
    with pytest.raises(EvalsuiteError, match=r"'passages'.*'passage'.*--score-only"):
        compare([folder], tmp_path / "out")
    score_again(folder)
    assert {path: path.read_bytes() for path in files} == files
    compare([folder], tmp_path / "out")


def test_documents_without_cluster_are_refused(run: Evaluate) -> None:
    folder = run()
    path = documents_path(folder, "passages")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[3]["cluster"] = None
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(EvalsuiteError, match=r"passages\.jsonl, line 4: 'cluster' = None.*'passage'"):
        score_again(folder)


def test_column_that_the_data_lack_is_refused(run: Evaluate) -> None:
    with pytest.raises(EvalsuiteError, match=r"me/passages: has no cluster_column 'pasage'.*'passage'"):
        run(cluster_column="pasage")


def test_row_without_a_value_in_the_column_is_refused(run: Evaluate) -> None:
    rows = [row | {"passage": None} if number == 2 else row for number, row in enumerate(ROWS)]
    with pytest.raises(EvalsuiteError, match=r"me/passages: document .*'passage' is missing"):
        run(rows)


def test_sources_name_a_column_all_or_none() -> None:
    def benchmark(second: dict[str, str]) -> Benchmark:
        first = {"dataset": "me/one", "split": "test", "cluster_column": "passage"}
        value = {
            "name": "two",
            "title": "Two",
            "category": "reasoning",
            "license": "MIT",
            "citation": "none",
            "sources": {"one": first, "two": {"dataset": "me/two", "split": "test", **second}},
            "loglikelihood": {"task": "piqa/piqa.yaml", "metric": "acc"},
        }
        return parse(value, Benchmark, "two.yaml")

    with pytest.raises(EvalsuiteError, match=r"two\.yaml.*'cluster_column'.*two"):
        benchmark({})
    assert benchmark({"cluster_column": "text"}).cluster_column == "passage, text"
