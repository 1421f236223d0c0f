"""Runs on one's own questions: both protocols, and a changed file is other data."""

import json
from pathlib import Path
from typing import Any

import pytest

from evalsuite.evaluation.plan import benchmarks_in
from evalsuite.foundation import DataError, RunFolderError, file_hash
from evalsuite.reports.report import build_report
from evalsuite.reports.run import read_manifest
from tests.evaluation.runs import evaluate_quietly
from tests.reports.score_edits import rows_by_cell

CHOICE = {"prompt": "Question: What?\nAnswer:", "choices": ["cake", "honey", "milk"], "answer": "honey"}


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run(files: str, out: Path, *checkpoints: str) -> None:
    evaluate_quietly(suite=files, checkpoints=checkpoints or ("a",), teacher="t", out=out)


def test_both_protocols_are_scored_on_the_same_documents(crew: Any, tmp_path: Path) -> None:
    more = write(
        tmp_path / "more.jsonl", {"question": "What?", "answer": "cake"}, {"question": "?", "answer": "so"}
    )
    listed = write(tmp_path / "listed.jsonl", {"question": "What?", "choices": ["cake", "milk"], "answer": 0})
    own = write(tmp_path / "own.jsonl", CHOICE, {**CHOICE, "answer": "C"})
    run(f"{own},{more},{listed},pocket_facts:limit=2", tmp_path / "run")
    found = rows_by_cell(tmp_path / "run")
    for name, documents in {"own": 2, "more": 2, "listed": 1, "pocket_facts": 2}.items():
        one, other = (
            [row["doc_id"] for row in found[f"{name}.{protocol}"] if row["checkpoint"] == "a"]
            for protocol in ("loglikelihood", "generation")
        )
        assert one == other
        assert len(one) == documents
    assert {row["chance"] for row in found["own.loglikelihood"]} == {1 / 3}
    assert {row["chance"] for row in found["own.generation"]} == {0}  # The prompt names no choice.
    assert {row["chance"] for row in found["listed.generation"]} == {1 / 2}
    assert {row["chance"] for row in found["more.loglikelihood"]} == {0}
    assert "contains" in found["more.generation"][0]["values"]
    (report,) = [build_report([tmp_path / "run"])]
    assert {each.name for each in report.benchmarks} == {"own", "more", "listed", "pocket_facts"}


def test_the_manifest_names_the_hash_and_not_the_place(crew: Any, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    own = write(tmp_path / "secret" / "own.jsonl", CHOICE)
    run(str(own), tmp_path / "run")
    manifest = read_manifest(tmp_path / "run")
    assert manifest.benchmarks[0].files_hash == file_hash(own)
    assert benchmarks_in(manifest)["own"].model_dump()["source"]["file"] == "own.jsonl"
    assert "secret" not in (tmp_path / "run" / "run.json").read_text()


def test_a_run_goes_on_where_the_file_has_moved(crew: Any, tmp_path: Path) -> None:
    own = write(tmp_path / "own.jsonl", CHOICE)
    run(str(own), tmp_path / "run")
    before = crew.computed
    (tmp_path / "elsewhere").mkdir()
    run(str(own.rename(tmp_path / "elsewhere" / "own.jsonl")), tmp_path / "run")
    assert crew.computed == before


def test_a_changed_file_is_never_mixed_with_old_scores(crew: Any, tmp_path: Path) -> None:
    own = write(tmp_path / "own.jsonl", CHOICE)
    run(str(own), tmp_path / "old")
    write(own, CHOICE, {**CHOICE, "answer": "milk"})
    with pytest.raises(RunFolderError, match=r"entries\[own\]\.benchmark\.source\.sha256"):
        run(str(own), tmp_path / "old")
    run(str(own), tmp_path / "new", "b")
    with pytest.raises(DataError, match=r"benchmark 'own' has files_hash .*cannot be merged"):
        build_report([tmp_path / "old", tmp_path / "new"])


def test_a_wrong_row_stops_a_run_before_anything_is_computed(crew: Any, tmp_path: Path) -> None:
    own = write(tmp_path / "own.jsonl", CHOICE, {**CHOICE, "answer": "horse"})
    with pytest.raises(DataError, match=r"own\.jsonl, line 2: the answer 'horse' is no choice"):
        run(str(own), tmp_path / "run")
    assert crew.computed == 0
    assert not (tmp_path / "run" / "run.json").exists()
