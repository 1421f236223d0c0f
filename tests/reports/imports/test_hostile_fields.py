"""HTML and formulas in the fields of foreign logs stay text, and lost documents are not measured."""

import csv
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from evalsuite.foundation import DataError
from evalsuite.reports import RunSelection, compare
from evalsuite.reports.imports import import_logs
from tests.reports.imports.logs import EveryEvalEverLog
from tests.reports.imports.test_stored_logs import FIXTURES

HOSTILE = "=1+1<img src=x onerror=alert(1)></script>$x$"
SHOWN = {
    "answer", "completion", "content", "explanation", "extracted_prediction", "extracted_value", "model",
    "name", "prediction", "raw", "target", "task", "text",
}  # fmt: skip
"""Fields whose text can reach the page: of models, tasks, documents and responses."""


def soiled(value: Any, key: str = "") -> Any:
    """Put the hostile text before every text of the fields above, alike in all logs."""
    if isinstance(value, dict):
        return {name: soiled(each, name) for name, each in value.items()}
    if isinstance(value, list):
        return [soiled(each, key) for each in value]
    return f"{HOSTILE}{value}" if isinstance(value, str) and key in SHOWN else value


def every_eval_ever(folder: Path) -> Iterator[Path]:
    for model, scores in (("big", [1.0, 0.0, 1.0, 1.0]), ("small", [1.0, 0.0, 0.0, 1.0])):
        log = EveryEvalEverLog(model, scores)
        log.aggregate["model_info"] = soiled(log.aggregate["model_info"])
        log.rows = [soiled(row) for row in log.rows]
        yield log.write(folder / model)


def inspect(folder: Path) -> Iterator[Path]:
    shutil.copytree(FIXTURES / "inspect", folder)
    for path in sorted(folder.glob("*_letters.json")):
        log = json.loads(path.read_text())
        log["eval"]["model"] = f"{HOSTILE}{log['eval']['model']}"
        log["eval"]["task"] = f"{HOSTILE}{log['eval']['task']}"
        for sample in log["samples"]:
            # Scorers compare the target and the answer with the choices.
            sample["messages"] = soiled(sample["messages"])
            sample["output"] = soiled(sample["output"])
        path.write_text(json.dumps(log))
        yield path


def evalscope(folder: Path) -> Iterator[Path]:
    shutil.copytree(FIXTURES / "evalscope", folder)
    for model in ("big", "small"):
        for path in (folder / model / "reviews").rglob("*.jsonl"):
            rows = [soiled(json.loads(line)) for line in path.read_text().splitlines()]
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        yield folder / model


@pytest.mark.parametrize("kind", [every_eval_ever, inspect, evalscope])
def test_html_and_formulas_stay_text(kind: Any, tmp_path: Path) -> None:
    name = kind.__name__.replace("_", "-")
    paths = list(kind(tmp_path / "logs"))
    runs = import_logs([(name, path) for path in paths], tmp_path / "imported")
    first = compare(runs, tmp_path / "first").report.checkpoints[0].label
    made = compare(runs, tmp_path / "out", selection=RunSelection(teacher=first))
    assert made.report.averages
    stored = [pd.read_parquet(path) for run in runs for path in (run / "scores").glob("*.parquet")]
    assert any("onerror=alert(1)" in str(row) for frame in stored for row in frame.to_dict("records"))
    page = made.page.read_text()
    assert "<img src=x" not in page
    assert "</script>$x$" not in page
    for path in (tmp_path / "out").glob("*.csv"):
        cells = [cell for row in csv.reader(path.open()) for cell in row]
        assert not [cell for cell in cells if cell.startswith("=")]


def test_lost_samples_are_refused_by_the_counts_of_their_log(tmp_path: Path) -> None:
    eee = EveryEvalEverLog("small", [1.0, 1.0, 0.0])
    eee.rows.pop()
    with pytest.raises(DataError, match=r"2 samples have 'accuracy' = 1, .* reports 0.666667"):
        import_logs([("every-eval-ever", eee.write(tmp_path / "eee"))], tmp_path / "out")
    shutil.copytree(FIXTURES / "evalscope", tmp_path / "evalscope")
    reviews = tmp_path / "evalscope" / "small" / "reviews" / "small" / "arc_ARC-Easy.jsonl"
    reviews.write_text("".join(reviews.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(DataError, match=r"arc_ARC-Easy.jsonl: 11 reviews, but .*arc.json counts 12"):
        import_logs([("evalscope", tmp_path / "evalscope")], tmp_path / "out")
