"""Exported samples: every score by document id, no question texts."""

import shutil
from pathlib import Path

import pandas as pd

from evalsuite.foundation import read_jsonl, write_text
from evalsuite.foundation.hashing import canonical_json
from evalsuite.reports.exports.samples import export_samples


def test_export_contains_every_score_by_document_id(small_run: Path, tmp_path: Path) -> None:
    files = export_samples([small_run], tmp_path, max_characters=10)
    files_of_run = sorted((small_run / "scores").glob("*.jsonl"))
    assert sorted(path.stem for path in files) == [path.stem for path in files_of_run]
    for path_of_run in files_of_run:
        rows = list(read_jsonl(path_of_run))
        frame = pd.read_parquet(tmp_path / "samples" / f"{path_of_run.stem}.parquet")
        assert len(frame) == len(rows)
        metrics = [name for name in rows[0]["values"] if name in frame]
        keys = ["doc_id", "checkpoint", *(["context"] if "context" in frame else [])]
        found = frame.set_index(keys)
        for row in rows:
            one = found.loc[tuple(row[key] for key in keys)]
            assert one["outcome"] == row["outcome"]
            for metric in metrics:
                assert abs(one[metric] - row["values"][metric]) < 1e-6 * max(1, abs(row["values"][metric]))
            detail = row["detail"]
            if path_of_run.stem.endswith("generation"):
                assert one["response"] == detail["response"][:10]
                assert one["extracted"] == detail["extracted"][:10]
            else:
                assert detail["logprobs"][one["choice"]] == max(detail["logprobs"])
    niah = pd.read_parquet(tmp_path / "samples" / "niah.generation.parquet")
    assert set(niah["context"]) == {512, 1024}
    assert "seed" not in niah


def test_failed_request_has_no_choice(small_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(small_run, run)
    path_of_run = next((run / "scores").glob("*.loglikelihood.jsonl"))
    rows = list(read_jsonl(path_of_run))
    rows[0] |= {"outcome": "error", "values": {}, "detail": {"error": "refused: it is too long"}}
    write_text(path_of_run, "".join(f"{canonical_json(row)}\n" for row in rows))
    export_samples([run], tmp_path / "out")
    frame = pd.read_parquet(tmp_path / "out" / "samples" / f"{path_of_run.stem}.parquet")
    failed = frame["outcome"] == "error"
    assert failed.sum() == 1
    assert frame["choice"].isna().equals(failed)
