"""`evalsuite score`: another scorer over the responses of a run, without inference."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from evalsuite.cli.entry import main
from evalsuite.config import RunConfig
from evalsuite.evaluation import evaluate
from evalsuite.evaluation.rescore import rescore
from evalsuite.foundation import ConfigError, RunFolderError
from evalsuite.protocols.scorers import SCORERS, Scorer, ScorerOutput
from evalsuite.reports.run import read_manifest
from tests.reports.score_edits import rows_by_cell


@pytest.fixture
def run(crew: Any, tmp_path: Path) -> Path:
    """A finished run of two checkpoints on one's own questions and a pocket benchmark."""
    own = tmp_path / "own.jsonl"
    rows = [{"prompt": f"Which is {n}? cake", "answer": "cake"} for n in range(3)]
    own.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = RunConfig(
        suite=f"{own},pocket_facts:limit=2", checkpoints=["a", "b"], out=tmp_path / "run", quiet=True
    )
    evaluate(config)
    return tmp_path / "run"


def files(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*.*") if path.is_file()}


def test_another_scorer_changes_the_scores_and_computes_nothing(run: Path, crew: Any) -> None:
    before, computed = files(run), crew.computed
    summary = rescore(run, scorer="any_found", quiet=True)
    assert summary.run == run.with_name("run-any_found")
    assert crew.computed == computed
    assert files(run) == before
    assert {row["values"]["share"] for row in rows_by_cell(summary.run)["own.generation"]} == {1.0}
    for cell in ("own.loglikelihood", "pocket_facts.loglikelihood", "pocket_facts.generation"):
        assert rows_by_cell(summary.run)[cell] == rows_by_cell(run)[cell]  # Its rows have no 'answers'.
    assert read_manifest(summary.run).benchmarks[0].protocols["generation"].metric == "accuracy"
    assert rescore(run, scorer="any_found", metric="accuracy", quiet=True).missing == 0


def test_the_main_metric_is_the_scorers_where_it_lacks_the_benchmarks(run: Path, tmp_path: Path) -> None:
    found = rescore(run, tmp_path / "f1", scorer="qa_f1", benchmarks=["own"], quiet=True)
    assert read_manifest(found.run).benchmarks[0].protocols["generation"].metric == "qa_f1"
    share = rescore(run, tmp_path / "share", scorer="any_found", metric="share", quiet=True)
    assert read_manifest(share.run).benchmarks[0].protocols["generation"].metric == "share"


def test_a_scorer_of_ones_own_reads_the_documents(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def length(row: Any, response: str) -> ScorerOutput:
        return ScorerOutput({"length": float(len(response))}, response, row["prompt"])

    monkeypatch.setitem(SCORERS._items, "length", Scorer(length))
    found = rows_by_cell(rescore(run, scorer="length", quiet=True).run)
    for cell in ("own.generation", "pocket_facts.generation"):
        assert all(row["values"]["length"] == len(row["detail"]["response"]) for row in found[cell])


def test_a_run_is_scored_again_in_place(run: Path, crew: Any, capsys: pytest.CaptureFixture[str]) -> None:
    before, computed = files(run), crew.computed
    (run / "scores.parquet").unlink()
    for path in (run / "scores").iterdir():
        path.unlink()
    assert main(["score", str(run), "--quiet"]) == 0
    assert crew.computed == computed
    scores = {name: data for name, data in files(run).items() if name.startswith("scores")}
    assert scores == {name: data for name, data in before.items() if name.startswith("scores")}
    assert "own generation accuracy" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scorer": "any_fond"}, "unknown scorer 'any_fond'; did you mean 'any_found'?"),
        (
            {"scorer": "any_found", "benchmarks": ["won"]},
            "'won' has no generated responses in .*; did you mean 'own'",
        ),
        (
            {"scorer": "any_found", "metric": "shar"},
            "--metric shar: not a metric of scorer 'any_found'; did you",
        ),
        (
            {"scorer": "option"},
            "scorer 'option' cannot read the documents of own: it needs the column 'choices'; they",
        ),
        ({"metric": "share"}, "belong to another scorer: pass --scorer, too"),
    ],
)
def test_a_mistake_is_named(options: dict[str, Any], message: str, run: Path) -> None:
    before = files(run)
    if options.get("scorer") == "option":
        options["benchmarks"] = ["own"]
    with pytest.raises(ConfigError, match=message):
        rescore(run, quiet=True, **options)
    assert files(run) == before


def test_another_run_is_not_overwritten(run: Path, crew: Any, tmp_path: Path) -> None:
    config = RunConfig(suite="pocket_cloze:limit=2", checkpoints=["a"], out=tmp_path / "other", quiet=True)
    evaluate(config)
    with pytest.raises(RunFolderError, match=re.escape(f"{tmp_path}/other: holds another run")):
        rescore(run, tmp_path / "other", scorer="any_found", quiet=True)
