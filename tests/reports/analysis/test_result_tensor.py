"""Several runs as one: what is compared is the same documents, and what is left out is said."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalsuite.foundation import ConfigError, DataError, RunFolderError, read_json, write_json
from evalsuite.foundation.taxonomy import OUTCOMES
from evalsuite.reports.analysis.result_tensor import load_result_tensor
from evalsuite.reports.records.merging import merge_plans
from evalsuite.reports.records.run_selection import RunSelection
from evalsuite.reports.records.score_files import read_rows, score_paths
from evalsuite.reports.records.score_table import write_scores
from evalsuite.reports.run import read_manifest, write_manifest
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run
from tests.reports.score_edits import all_rows, edit_rows, write_unchecked


def two(run: Path, labels: tuple[str, ...] = ("teacher", "student"), **requested: Any) -> Path:
    """A run of one benchmark; the first label is the teacher."""
    answerers = [
        SyntheticCheckpoint(label, lambda b, p, c: 0.7, "teacher" if i == 0 else "student")
        for i, label in enumerate(labels)
    ]
    benchmarks = [SyntheticBenchmark("facts", "Facts", "knowledge", **({"documents": 60} | requested))]
    return make_run(run, benchmarks, answerers)


def edit(run: Path, benchmark: str, protocol: str, change: Any) -> None:
    """Apply `change` to every score row; rows for which it gives None vanish."""
    edit_rows(run, benchmark, protocol, lambda number, row: change(row))


def test_plan_round_trip(small_run: Path, tmp_path: Path) -> None:
    plan = read_manifest(small_run)
    write_manifest(tmp_path, plan)
    assert read_manifest(tmp_path) == plan


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("sutie", "x", "unknown key 'sutie'; did you mean 'suite'"),
        ("schema", 1, "'schema' = 1; this evalsuite reads 4"),
        ("checkpoints", [], "'checkpoints'"),
    ],
)
def test_invalid_plan_is_refused(
    small_run: Path, tmp_path: Path, key: str, value: object, message: str
) -> None:
    plan = read_json(small_run / "run.json")
    write_json(tmp_path / "run.json", plan | {key: value})
    with pytest.raises((DataError, RunFolderError), match=r"run\.json") as caught:
        read_manifest(tmp_path)
    assert message in str(caught.value)


def test_folder_without_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"not a run folder \(it has no run\.json"):
        load_result_tensor([tmp_path])
    with pytest.raises(ConfigError, match="no run folders"):
        load_result_tensor([])


def test_cells_have_values_and_documents(small_run: Path) -> None:
    tensor = load_result_tensor([small_run])
    assert [checkpoint.label for checkpoint in tensor.checkpoints] == ["teacher", "strong", "weak"]
    assert [checkpoint.teacher for checkpoint in tensor.checkpoints] == [None, 0, 0]
    assert tensor.warnings == ()
    facts = tensor.find("arc_easy", "loglikelihood")[0]
    assert facts.values.shape == (3, 1, 400)
    assert sorted(set(facts.documents)) == list(facts.documents)
    rows = all_rows(small_run, "arc_easy", "loglikelihood")
    mine = {row["doc_id"]: row["values"]["acc"] for row in rows if row["checkpoint"] == "weak"}
    assert [mine[document] for document in facts.documents] == facts.scores()[2].tolist()
    assert np.all(facts.chance == 0.25)
    assert [cell.context for cell in tensor.find("niah", "generation")] == [512, 1024]
    assert tensor.find("wikitext", "loglikelihood")[0].units.mean() > 1


def test_student_without_lineage_gets_the_only_teacher(tmp_path: Path) -> None:
    assert [s.teacher for s in merge_plans([two(tmp_path)]).checkpoints] == [None, 0]


def test_runs_are_merged_by_weights_id(tmp_path: Path) -> None:
    one = two(tmp_path / "one", ("teacher", "gla"))
    other = two(tmp_path / "other", ("teacher", "kda"))
    tensor = load_result_tensor([one, other])
    assert [checkpoint.label for checkpoint in tensor.checkpoints] == ["teacher", "gla", "kda"]
    assert tensor.cells[0].values.shape == (3, 1, 60)
    assert tensor.warnings == ()


@pytest.mark.parametrize("stated", [None, ["0" * 16]])
def test_scores_of_no_plan_are_named(tmp_path: Path, stated: list[str] | None) -> None:
    """Those of weights that it has not, and those of another fingerprint than it states."""
    run = two(tmp_path, ("teacher", "gla", "stray"))
    plan = read_json(run / "run.json")
    stray = plan["checkpoints"].pop()
    if stated:
        plan["checkpoints"].append(stray | {"fingerprints": stated})
    write_json(run / "run.json", plan)
    said = [each for each in load_result_tensor([run]).warnings if "belong to no plan" in each]
    assert said
    assert all(f"weights_id {stray['weights_id']} with fingerprint" in each for each in said)


def test_contradicting_scores_are_refused(tmp_path: Path) -> None:
    one, other = two(tmp_path / "one"), two(tmp_path / "other")
    edit(other, "facts", "loglikelihood", lambda row: row | {"values": {"acc": 1 - row["values"]["acc"]}})
    with pytest.raises(DataError, match=r"two different scores for document .*, row \d+, and .*row"):
        load_result_tensor([one, other])


def test_contradicting_plans_are_refused(tmp_path: Path) -> None:
    one, other = two(tmp_path / "one"), two(tmp_path / "other")
    plan = read_json(other / "run.json")
    plan["benchmarks"][0]["protocols"]["loglikelihood"]["num_fewshot"] = 5
    write_json(other / "run.json", plan)
    with pytest.raises(DataError, match="benchmark 'facts' has num_fewshot 5, but 0"):
        load_result_tensor([one, other])


def test_unfinished_checkpoint_is_excluded_with_warning(tmp_path: Path) -> None:
    run = two(tmp_path, ("teacher", "done", "unfinished"))
    kept = iter(range(10_000))
    edit(
        run,
        "facts",
        "loglikelihood",
        lambda row: row if row["checkpoint"] != "unfinished" or next(kept) < 20 else None,
    )
    tensor = load_result_tensor([run])
    assert tensor.find("facts", "loglikelihood")[0].present == (0, 1)
    assert tensor.find("facts", "generation")[0].present == (0, 1, 2)
    assert any("'unfinished' has 20 of 60 documents under log-likelihood" in w for w in tensor.warnings)
    assert [(each.checkpoint, each.documents, each.planned) for each in tensor.incomplete] == [(2, 20, 60)]


def test_partial_cells_are_compared_on_request(tmp_path: Path) -> None:
    run = two(tmp_path)
    kept = iter(range(10_000))
    edit(
        run,
        "facts",
        "loglikelihood",
        lambda row: row if row["checkpoint"] == "teacher" or next(kept) < 30 else None,
    )
    (cell,) = load_result_tensor([run]).find("facts", "loglikelihood")
    assert (cell.present, len(cell.documents)) == ((0,), 60)
    tensor = load_result_tensor([run], RunSelection(min_coverage=0.5))
    (cell,) = tensor.find("facts", "loglikelihood")
    assert (cell.present, len(cell.documents), cell.planned) == ((0, 1), 30, 60)
    said = "Facts: 'teacher', 'student' are compared on 30 of 60 documents under log-likelihood."
    assert said in tensor.warnings
    assert any("min_coverage 0.5" in warning for warning in tensor.warnings)
    assert load_result_tensor([run], RunSelection(min_coverage=0.51)).cells[0].present == (0,)


def test_documents_with_other_prompts_are_not_compared(tmp_path: Path) -> None:
    run = two(tmp_path)
    changed = iter(range(10_000))
    edit(
        run,
        "facts",
        "loglikelihood",
        lambda row: (
            row | {"prompt_hash": "other"} if row["checkpoint"] == "student" and next(changed) < 5 else row
        ),
    )
    tensor = load_result_tensor([run])
    assert tensor.find("facts", "loglikelihood")[0].present == (0,)
    said = "55 of 60 documents under log-likelihood (5 have other prompts than its teacher's): not measured"
    assert any(said in w for w in tensor.warnings)
    partial = load_result_tensor([run], RunSelection(min_coverage=0.9)).find("facts", "loglikelihood")[0]
    assert (partial.present, len(partial.documents)) == ((0, 1), 55)


def test_errors_are_wrong_or_excluded(tmp_path: Path) -> None:
    run = two(tmp_path)
    wrong = iter(range(10_000))
    edit(
        run,
        "facts",
        "generation",
        lambda row: (
            row | {"outcome": "error", "values": {}}
            if row["checkpoint"] == "student" and next(wrong) < 3
            else row
        ),
    )
    tensor = load_result_tensor([run])
    (cell,) = tensor.find("facts", "generation")
    failed = cell.outcomes[1, 0] == OUTCOMES.index("error")
    assert (len(cell.documents), failed.sum(), cell.values[1, 0][failed].sum()) == (60, 3, 0)
    assert tensor.errors == {(1, "facts", "generation"): 3}
    assert "Facts: 3 generation responses of 'student' are errors and count as wrong." in tensor.warnings
    tensor = load_result_tensor([run], RunSelection(errors="exclude"))
    (cell,) = tensor.find("facts", "generation")
    assert len(cell.documents) == 57
    assert set(cell.documents) < set(tensor.find("facts", "loglikelihood")[0].documents)
    assert "Facts: 3 generation responses of 'student' are errors and are excluded." in tensor.warnings
    assert any("(errors exclude)" in warning for warning in tensor.warnings)


def test_another_fingerprint_is_another_checkpoint(tmp_path: Path) -> None:
    """Unless both are declared the same: then one of them counts in each cell, with a warning."""
    one, other = two(tmp_path / "one"), two(tmp_path / "other")
    for protocol in ("loglikelihood", "generation"):
        edit(other, "facts", protocol, lambda row: row | {"fingerprint": "bf16" + row["weights_id"]})
    tensor = load_result_tensor([one, other])
    assert [(each.label_in_run, each.scored_as[0].startswith("bf16")) for each in tensor.checkpoints] == [
        ("teacher", False),
        ("student", False),
        ("teacher", True),
        ("student", True),
    ]
    assert [each.teacher for each in tensor.checkpoints] == [None, 0, None, 2]
    selection = RunSelection(same=("teacher", "student"))
    tensor = load_result_tensor([one, other], selection)
    assert [each.label for each in tensor.checkpoints] == ["teacher", "student"]
    assert len(tensor.cells[0].documents) == 60
    assert any("was evaluated more than once under log-likelihood" in w for w in tensor.warnings)


def test_score_outside_unit_interval_is_refused(tmp_path: Path) -> None:
    run = two(tmp_path)
    edit(run, "facts", "loglikelihood", lambda row: row | {"values": {"acc": 55.0}})
    with pytest.raises(DataError, match="row 1: acc = 55; a score is a fraction"):
        load_result_tensor([run])


def test_other_sampling_is_ignored_or_refused(tmp_path: Path) -> None:
    run = two(tmp_path)
    for path in score_paths(run, "facts", "generation"):
        rows = list(read_rows(path).values())
        write_unchecked(path, [*rows, *(row | {"sampling": "t0.7"} for row in rows)])
    assert any("with sampling 't0.7' are ignored" in w for w in load_result_tensor([run]).warnings)
    edit(
        run,
        "facts",
        "generation",
        lambda row: row | {"sampling": "t0.9"} if row["sampling"] == "greedy" else None,
    )
    with pytest.raises(DataError, match=r"has sampling 'greedy', the generation score rows have 't0\.9'"):
        load_result_tensor([run])


def test_teacher_option(tmp_path: Path) -> None:
    run = two(tmp_path, ("teacher", "a", "b"))
    checkpoints = load_result_tensor([run], RunSelection(teacher="b")).checkpoints
    assert [(s.label, s.teacher) for s in checkpoints] == [("b", None), ("teacher", 0), ("a", 0)]
    with pytest.raises(ConfigError, match="no run has a checkpoint 'bb'"):
        load_result_tensor([run], RunSelection(teacher="bb"))


def test_selected_checkpoints_keep_their_teacher(tmp_path: Path) -> None:
    run = two(tmp_path, ("teacher", "a", "b"))
    tensor = load_result_tensor([run], RunSelection(checkpoints=("b",)))
    assert [(each.label, each.teacher) for each in tensor.checkpoints] == [("teacher", None), ("b", 0)]
    assert tensor.find("facts", "generation")[0].present == (0, 1)
    assert tensor.warnings == ("Only some checkpoints are compared: b (--checkpoint).",)
    with pytest.raises(ConfigError, match="no run has a checkpoint 'c'"):
        load_result_tensor([run], RunSelection(checkpoints=("c",)))


@pytest.mark.parametrize("options", [{"min_coverage": 0.0}, {"min_coverage": 1.5}, {"errors": "ignore"}])
def test_invalid_selections_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        RunSelection(**options)


def test_more_documents_than_planned_are_refused(tmp_path: Path) -> None:
    run = two(tmp_path)
    plan = read_json(run / "run.json")
    plan["benchmarks"][0]["protocols"]["generation"]["documents"] = 50
    write_json(run / "run.json", plan)
    with pytest.raises(DataError, match=r"'facts' has 50 documents, but 'teacher' has generation .* of 60"):
        load_result_tensor([run])


@pytest.mark.parametrize("documents", [0, {}, {512: 60}, None])
def test_invalid_counts_are_refused(small_run: Path, tmp_path: Path, documents: Any) -> None:
    plan = read_json(small_run / "run.json")
    plan["benchmarks"][0]["protocols"]["generation"]["documents"] = documents
    write_json(tmp_path / "run.json", plan)
    with pytest.raises(DataError, match="documents"):
        read_manifest(tmp_path)


def test_runs_with_other_counts_are_incomplete(tmp_path: Path) -> None:
    one = two(tmp_path / "one", ("teacher", "large"))
    other = two(tmp_path / "other", ("teacher", "small"))
    first = {row["doc_id"] for row in all_rows(other, "facts", "generation")}
    kept = sorted(first)[:40]
    edit(other, "facts", "generation", lambda row: row if row["doc_id"] in kept else None)
    plan = read_json(other / "run.json")
    plan["benchmarks"][0]["protocols"]["generation"]["documents"] = 40
    write_json(other / "run.json", plan)
    tensor = load_result_tensor([one, other])
    said = "benchmark 'facts' has 40 documents, 60 in an earlier run; a cell is complete with 60."
    assert any(said in warning for warning in tensor.warnings)
    assert {(each.checkpoint, each.documents, each.planned) for each in tensor.incomplete} == {(2, 40, 60)}


def test_missing_seed_is_incomplete(tmp_path: Path) -> None:
    run = two(tmp_path, protocols=("generation",), seeds=(0, 1))
    edit(
        run,
        "facts",
        "generation",
        lambda row: None if (row["checkpoint"], row["seed"]) == ("student", 1) else row,
    )
    tensor = load_result_tensor([run])
    assert tensor.cells[0].present == (0,)
    assert [(each.checkpoint, each.documents) for each in tensor.incomplete] == [(1, 0)]


def test_equal_labels_get_a_suffix(tmp_path: Path) -> None:
    one, other = two(tmp_path / "one"), two(tmp_path / "other", ("teacher", "gla"))
    plan = read_json(other / "run.json")
    plan["checkpoints"][1]["label"] = "student"
    write_json(other / "run.json", plan)
    labels = [checkpoint.label for checkpoint in load_result_tensor([one, other]).checkpoints]
    assert len(set(labels)) == 3
    assert all(label.startswith("student (") for label in labels[1:])


def test_students_are_paired_by_lineage(tmp_path: Path) -> None:
    big = SyntheticCheckpoint("big", lambda b, p, c: 0.8, "teacher")
    small = SyntheticCheckpoint("small", lambda b, p, c: 0.6, "teacher")
    mine = SyntheticCheckpoint(
        "mine", lambda b, p, c: 0.5, lineage={"teacher": {"weights_id": small.weights_id, "path": "small"}}
    )
    lost = SyntheticCheckpoint("lost", lambda b, p, c: 0.5)
    run = make_run(
        tmp_path, [SyntheticBenchmark("facts", "Facts", "knowledge", 40)], [big, small, mine, lost]
    )
    tensor = load_result_tensor([run])
    assert [(s.label, s.teacher) for s in tensor.checkpoints] == [
        ("big", None),
        ("small", None),
        ("mine", 1),
        ("lost", None),
    ]
    assert any("lineage of 'lost' does not name one of the 2 teachers" in w for w in tensor.warnings)


def test_score_table_is_written_to_run_folder(small_run: Path) -> None:
    table = write_scores(small_run)
    assert (small_run / "scores.parquet").exists()
    row = table[
        (table["label"] == "weak") & (table["benchmark"] == "niah") & (table["context"] == 1024)
    ].iloc[0]
    tensor = load_result_tensor([small_run])
    assert row["score"] == pytest.approx(tensor.find("niah", "generation")[1].scores()[2].mean())
    assert row["low"] < row["score"] < row["high"]
    assert row["documents"] == row["ok"] + row["looped"] + row["truncated"] + row["extraction_failed"] == 100


def test_interrupted_student_is_not_measured(tmp_path: Path) -> None:
    """The first responses of an interrupted run are no random sample, however well they can be paired."""
    run = make_run(
        tmp_path / "run",
        [
            SyntheticBenchmark("arc_easy", "ARC-Easy", "knowledge", 100),
            SyntheticBenchmark("piqa", "PIQA", "common_sense", 100),
        ],
        {"t": 0.7, "s": 0.6},
    )
    edit_rows(
        run,
        "piqa",
        "loglikelihood",
        lambda number, row: row if row["checkpoint"] != "s" or number <= 60 else None,
    )
    partial = RunSelection(min_coverage=0.6)
    assert len(load_result_tensor([run], partial).find("piqa", "loglikelihood")[0].documents) == 60
    tensor = load_result_tensor([run])
    (cell,) = tensor.find("piqa", "loglikelihood")
    assert (cell.present, len(cell.documents)) == ((0,), 100)
    assert tensor.find("piqa", "generation")[0].present == (0, 1)
    said = "PIQA: 's' has 60 of 100 documents under log-likelihood: not measured."
    assert said in tensor.warnings
