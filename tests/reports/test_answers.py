"""Answers that are published: every score, no question, and what was ranked or written."""

import shutil
from pathlib import Path

import pandas as pd

from evalsuite.foundation import read_jsonl, write_text
from evalsuite.foundation.hashing import canonical_json
from evalsuite.reports.answers import write_answers


def test_every_score_is_there_by_document_id(small_run: Path, tmp_path: Path) -> None:
    files = write_answers([small_run], tmp_path, most=10)
    journals = sorted((small_run / "records").glob("*.jsonl"))
    assert sorted(path.stem for path in files) == [path.stem for path in journals]
    for journal in journals:
        rows = list(read_jsonl(journal))
        frame = pd.read_parquet(tmp_path / "answers" / f"{journal.stem}.parquet")
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
            if journal.stem.endswith("generation"):
                assert one["answer"] == detail["response"][:10]
                assert one["extracted"] == detail["extracted"][:10]
            else:
                assert detail["logprobs"][one["picked"]] == max(detail["logprobs"])
    niah = pd.read_parquet(tmp_path / "answers" / "niah.generation.parquet")
    assert set(niah["context"]) == {512, 1024}
    assert "seed" not in niah


def test_an_answer_that_failed_has_picked_nothing(small_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(small_run, run)
    journal = next((run / "records").glob("*.loglikelihood.jsonl"))
    rows = list(read_jsonl(journal))
    rows[0] |= {"outcome": "error", "values": {}, "detail": {"error": "refused: it is too long"}}
    write_text(journal, "".join(f"{canonical_json(row)}\n" for row in rows))
    write_answers([run], tmp_path / "out")
    frame = pd.read_parquet(tmp_path / "out" / "answers" / f"{journal.stem}.parquet")
    failed = frame["outcome"] == "error"
    assert failed.sum() == 1
    assert frame["picked"].isna().equals(failed)
