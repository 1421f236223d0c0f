"""Exported samples: every score by document id, no question texts."""

import shutil
from pathlib import Path

import pandas as pd

from evalsuite.reports.exports.samples import export_samples
from tests.reports.score_edits import Row, edit_rows, rows_by_cell


def test_export_contains_every_score_by_document_id(small_run: Path, tmp_path: Path) -> None:
    files = export_samples([small_run], tmp_path, max_characters=10)
    cells = rows_by_cell(small_run)
    assert sorted(path.stem for path in files) == list(cells)
    for name, rows in cells.items():
        frame = pd.read_parquet(tmp_path / "samples" / f"{name}.parquet")
        assert len(frame) == len(rows)
        metrics = [metric for metric in rows[0]["values"] if metric in frame]
        keys = ["doc_id", "checkpoint", *(["context"] if "context" in frame else [])]
        found = frame.set_index(keys)
        for row in rows:
            one = found.loc[tuple(row[key] for key in keys)]
            assert one["outcome"] == row["outcome"]
            for metric in metrics:
                assert abs(one[metric] - row["values"][metric]) < 1e-6 * max(1, abs(row["values"][metric]))
            detail = row["detail"]
            if name.endswith("generation"):
                assert one["response"] == detail["response"][:10]
                assert one["extracted"] == detail["extracted"][:10]
            elif "acc" in row["values"]:
                assert one["choice"] == row["choices"]["acc"]
                assert (one["choice"] == detail["gold"]) == (one["acc"] == 1)
    niah = pd.read_parquet(tmp_path / "samples" / "niah.generation.parquet")
    assert set(niah["context"]) == {512, 1024}
    assert "seed" not in niah


def test_choice_is_that_of_the_planned_metric(small_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(small_run, run)

    def add_acc_norm(number: int, row: Row) -> Row:
        return row | {
            "values": row["values"] | {"acc_norm": 1.0},
            "choices": row["choices"] | {"acc_norm": row["detail"]["gold"]},
        }

    edit_rows(run, "piqa", "loglikelihood", add_acc_norm)
    plan = (run / "plan.yaml").read_text()
    start = plan.index("name: piqa")
    (run / "plan.yaml").write_text(plan[:start] + plan[start:].replace("metric: acc", "metric: acc_norm", 1))
    export_samples([run], tmp_path / "out")
    frame = pd.read_parquet(tmp_path / "out" / "samples" / "piqa.loglikelihood.parquet")
    gold = {row["doc_id"]: row["detail"]["gold"] for row in rows_by_cell(run)["piqa.loglikelihood"]}
    assert (frame["choice"] == frame["doc_id"].map(gold)).all()
    assert (frame["acc_norm"] == 1).all()


def test_failed_request_has_no_choice(small_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(small_run, run)
    failed = {"outcome": "error", "error": "refused: it is too long", "values": {}, "choices": {}}
    edit_rows(
        run,
        "piqa",
        "loglikelihood",
        lambda number, row: row | failed if (number, row["checkpoint"]) == (1, "weak") else row,
    )
    export_samples([run], tmp_path / "out")
    frame = pd.read_parquet(tmp_path / "out" / "samples" / "piqa.loglikelihood.parquet")
    wrong = frame["outcome"] == "error"
    assert wrong.sum() == 1
    assert frame["choice"].isna().equals(wrong)
