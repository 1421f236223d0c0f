"""Recall and LongBench from a data folder to scores, and parity with lm-eval's metrics."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.evaluation.runs import evaluate_quietly
from tests.parity.generation_metrics import lm_eval_metric, main
from tests.reports.score_edits import edit_rows

SUITE = """
name: reading
title: Reading
limit: 3
benchmarks:
  - {benchmark: niah_single_1, contexts: [512, 600]}
  - {benchmark: ruler_qa_1, contexts: [600]}
  - {benchmark: mqar, contexts: [512]}
  - fda
  - longbench_qasper
  - longbench_trec
  - longbench_lcc
"""
ROWS = {
    "hazyresearch__based-fda/default/validation": {"text": "Device: Aven.\nMaker:", "value": "maker"},
    "Xnhyacinth__LongBench/qasper/test": {
        "context": "It is long.",
        "question": "How?",
        "answers": ["long", "answer:"],
    },
    "Xnhyacinth__LongBench/trec/test": {
        "context": "Question: a\nType: Other",
        "question": "Question: b\nType:",
        "answers": ["type"],
        "all_classes": "['type', 'Other']",
    },
    "Xnhyacinth__LongBench/lcc/test": {"context": "x = 1\n", "question": "", "answers": ["line of code"]},
    "rajpurkar__squad/plain_text/validation": {
        "title": "Aven",
        "context": "The river Aven is long and wide.",
        "question": "Is it long?",
        "answers": {"text": ["answer", "wide"], "answer_start": [1, 2]},
    },
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name, row in ROWS.items():
        path = tmp_path / "data" / f"{name}.parquet"
        path.parent.mkdir(parents=True)
        number = 400 if "squad" in name else 2
        rows = [{key: _numbered(value, each) for key, value in row.items()} for each in range(number)]
        pq.write_table(pa.Table.from_pylist(rows), path)
    return tmp_path / "data"


def _numbered(value: Any, number: int) -> Any:
    return (
        f"{number} {value}"
        if isinstance(value, str) and not value.startswith("[") and value != "maker"
        else value
    )


def test_ruler_and_longbench_scores_equal_lm_eval_metrics(
    crew: Any, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("fuzzywuzzy")
    pytest.importorskip("rouge")
    suite, run = tmp_path / "reading.yaml", tmp_path / "run"
    suite.write_text(SUITE)
    summary = evaluate_quietly(suite=suite, checkpoints=["a"], out=run, data=data)
    assert summary.missing == 0
    assert main([str(run)]) == 0
    output = capsys.readouterr().out
    assert "7 of 7 scores are equal" in output
    table = (run / "generation_metrics.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in table[1:]] == [
        "niah_single_1@512",
        "niah_single_1@600",
        "ruler_qa_1@600",
        "fda",
        "longbench_qasper",
        "longbench_trec",
        "longbench_lcc",
    ]
    # The stand-in responds with the end of its prompt, which contains some of the answers.
    assert sum(float(row.split(",")[5]) > 0 for row in table[1:]) >= 2
    edit_rows(
        run,
        "fda",
        "generation",
        lambda number, row: (
            row | {"values": {"contains": 1 - row["values"]["contains"]}} if number == 1 else row
        ),
    )
    assert main([str(run)]) == 1
    assert "6 of 7 scores are equal" in capsys.readouterr().out


def test_scorers_without_lm_eval_metric_are_left_out() -> None:
    assert lm_eval_metric("first_word") is None
    assert lm_eval_metric("pocket") is None
