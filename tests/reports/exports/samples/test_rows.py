"""Score files of several checkpoints: exact scores, reduced details, refused when damaged."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evalsuite.foundation import DataError, content_hash
from evalsuite.reports.analysis.result_tensor import load_result_tensor
from evalsuite.reports.records.reading import MAX_ANSWER, comparable_answer
from evalsuite.reports.records.run_selection import RunSelection
from evalsuite.reports.records.schema import KEY
from evalsuite.reports.records.score_files import (
    FLAGS,
    METADATA,
    ScoreFileInfo,
    open_score_file,
    pack_rows,
    read_rows,
    score_paths,
)
from evalsuite.reports.records.score_table import score_table
from tests.cli.test_damaged_scores import DAMAGES, ONLY_DETAIL
from tests.reports.exports.samples.conftest import contents, part_of, samples_of, tables
from tests.reports.score_edits import SCORER, Row, edit_rows, rows_by_cell


def test_scores_are_exactly_those_of_the_run(run: Path, samples: Path) -> None:
    def by_key(rows: list[Row]) -> dict[tuple[object, ...], Row]:
        return {tuple(row[name] for name in KEY): row for row in rows}

    expected, found = rows_by_cell(run), rows_by_cell(samples)
    assert list(found) == list(expected)
    for cell, rows in expected.items():
        published = by_key(found[cell])
        assert len(published) == len(rows)
        for key, row in by_key(rows).items():
            different = {name for name in row if published[key][name] != row[name]}
            assert different <= {"detail", "error"}, (cell, different)


def test_details_hold_what_the_model_wrote(samples: Path) -> None:
    for cell, rows in rows_by_cell(samples).items():
        for row in rows:
            is_generated = cell.endswith("generation")
            assert set(row["detail"]) == ({"response", "extracted"} if is_generated else set()), cell
    answers = [row["detail"]["extracted"] for row in rows_by_cell(samples)["arc_easy.generation"]]
    assert max(map(len, answers)) == MAX_ANSWER
    assert {answer for answer in answers if len(answer) == 1} == set("ABCD")


def test_responses_are_cut(run: Path, tmp_path: Path) -> None:
    copy = part_of(run, tmp_path / "run", "hellaswag")
    long = {"outcome": "error", "error": "e" * 1000, "values": {}, "choices": {}}

    def change(number: int, row: Row) -> Row:
        detail = {"response": "r" * 1000, "extracted": None if number % 2 else 7}
        return row | {"detail": detail} | (long if number == 3 else {})

    edit_rows(copy, "hellaswag", "generation", change)
    rows = rows_by_cell(samples_of(copy, out=tmp_path / "page"))["hellaswag.generation"]
    assert {row["detail"]["response"] for row in rows} == {"r" * 240}
    assert {row["detail"].get("extracted") for row in rows} == {None, "7"}
    assert {row["error"] for row in rows} == {None, "e" * 240}


def test_rows_are_sorted_by_document_with_the_labels_of_the_report(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    plan = (copy / "run.json").read_text().replace('"label": "gla"', '"label": "renamed"')
    (copy / "run.json").write_text(plan)
    for cell, rows in rows_by_cell(samples_of(copy, out=tmp_path / "page")).items():
        order = [(row["context"] or 0, row["doc_id"], row["seed"], row["checkpoint"]) for row in rows]
        assert order == sorted(order), cell
        assert {row["checkpoint"] for row in rows} == {"teacher", "renamed", "retnet"}


def test_one_file_for_each_version_of_a_scorer(run: Path, tmp_path: Path) -> None:
    copy = part_of(run, tmp_path / "run", "piqa")
    path = score_paths(copy, "piqa", "loglikelihood")[0]
    rows = list(read_rows(path).values())
    other = ScoreFileInfo(scorer=SCORER.__class__(**asdict(SCORER) | {"version": "2"}), inputs="", rows=80)
    path.write_bytes(pack_rows(rows, other))
    folder = samples_of(copy, out=tmp_path / "page")
    infos = {each.name: open_score_file(each)[1] for each in score_paths(folder, "piqa", "loglikelihood")}
    assert {name: (info.scorer.version, info.rows) for name, info in infos.items()} == {
        f"piqa.loglikelihood.{content_hash(asdict(SCORER))}.parquet": ("1", 160),
        f"piqa.loglikelihood.{content_hash(asdict(other.scorer))}.parquet": ("2", 80),
    }
    assert load_result_tensor([folder]).warnings == load_result_tensor([copy]).warnings
    assert any("different versions" in warning for warning in load_result_tensor([folder]).warnings)


def test_rows_that_are_not_compared_are_left_out(run: Path, tmp_path: Path) -> None:
    copy = part_of(run, tmp_path / "run", "piqa", "niah_single_1")
    path = score_paths(copy, "piqa", "loglikelihood")[0]
    rows = [row | {"fingerprint": "f" * 16} for row in read_rows(path, range(1, 41)).values()]
    path.with_name(f"piqa.loglikelihood.{'f' * 16}.parquet").write_bytes(
        pack_rows(rows, ScoreFileInfo(scorer=SCORER, inputs="", rows=40))
    )
    edit_rows(copy, "niah_single_1", "generation", lambda _, row: row | {"seed": row["context"] // 1024})
    # Another engine is another checkpoint, unless it is declared to be the same.
    same = (str(rows[0]["checkpoint"]),)
    folder = samples_of(copy, out=tmp_path / "page", same=same)
    found = rows_by_cell(folder)
    assert "f" * 16 not in {row["fingerprint"] for row in found["piqa.loglikelihood"]}
    assert {row["seed"] for row in found["niah_single_1.generation"]} == {0}
    before = tables(copy, selection=RunSelection(same=same))
    assert tables(folder) == before


def test_score_table_has_a_row_for_each_checkpoint(run: Path, samples: Path) -> None:
    order = ["label", "benchmark", "protocol", "context", "seed", "metric"]
    one, other = (score_table(each).sort_values(order, ignore_index=True) for each in (run, samples))
    assert other.equals(one)
    assert other["label"].nunique() == 3


@pytest.mark.parametrize("flag", FLAGS)
def test_marks_of_texts_and_responses_stay(run: Path, tmp_path: Path, flag: str) -> None:
    copy = part_of(run, tmp_path / "run", "piqa")
    edit_rows(copy, "piqa", "loglikelihood", lambda _, row: row | {flag: row["checkpoint"] == "gla"})
    folder = samples_of(copy, out=tmp_path / "page")
    assert tables(folder) == tables(copy)
    marked = [row["checkpoint"] for row in rows_by_cell(folder)["piqa.loglikelihood"] if row[flag]]
    assert marked == ["gla"] * 80
    assert contents(samples_of(folder, out=tmp_path / "again")) == contents(folder)


def with_metadata(path: Path, **changes: object) -> None:
    """Change the metadata of a score file."""
    table = pq.read_table(path)
    value = json.loads(table.schema.metadata[METADATA]) | changes
    pq.write_table(table.replace_schema_metadata({METADATA: json.dumps(value)}), path)


def with_column(path: Path, name: str, change: Callable[[list[str]], list[str]]) -> None:
    """Change a column of texts."""
    table = pq.read_table(path)
    values = pa.array(change(table[name].to_pylist()), pa.string())
    pq.write_table(table.set_column(table.column_names.index(name), name, values), path)


def with_a_repeated_key(path: Path) -> None:
    """Give the first row to the checkpoint of the second, which has the document too."""
    for name in ("weights_id", "fingerprint"):
        with_column(path, name, lambda old: [old[1], *old[1:]])


FOREIGN: dict[str, tuple[Callable[[Path], object], str]] = {
    "of another scorer": (
        lambda path: with_metadata(path, scorer=asdict(SCORER) | {"version": "2"}),
        "has score rows of arc_easy, generation, scorer simulation 1, synthetic 2",
    ),
    "another name": (
        lambda path: path.rename(path.with_name("arc_easy.generation.mine.parquet")),
        "has score rows of arc_easy, generation, scorer simulation 1, synthetic 1",
    ),
    "several checkpoints that are not said": (
        lambda path: with_metadata(path, merged=False),
        "another weights_id than row 1",
    ),
    "a mark that is text": (lambda path: with_metadata(path, merged="yes"), "not a score file"),
    "two benchmarks": (
        lambda path: with_column(path, "benchmark", lambda old: [*old[:-1], "piqa"]),
        "another benchmark than row 1",
    ),
    "a document of one checkpoint twice": (with_a_repeated_key, "repeats the key of row 1 "),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_foreign_files_are_refused_by_name(what: str, samples: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(samples, tmp_path / "samples"))
    (path,) = score_paths(copy, "arc_easy", "generation")
    damage, message = FOREIGN[what]
    damage(path)
    (path,) = score_paths(copy, "arc_easy", "generation")
    with pytest.raises(DataError, match=message) as refused:
        load_result_tensor([copy])
    assert path.name in str(refused.value)


@pytest.mark.parametrize("what", [name for name in DAMAGES if name not in ONLY_DETAIL])
def test_damaged_files_are_refused_by_name(what: str, samples: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(samples, tmp_path / "samples"))
    (path,) = score_paths(copy, "arc_easy", "loglikelihood")
    DAMAGES[what](path)
    with pytest.raises(DataError) as refused:
        samples_of(copy, out=tmp_path / "page")
    assert path.name in str(refused.value)


def test_fractions_of_one_checkpoint_leave_the_answers_of_others(run: Path, samples: Path) -> None:
    for folder in (run, samples):
        (cell,) = load_result_tensor([folder]).find("squad", "generation")
        assert (cell.answers >= 0).any(axis=(1, 2)).tolist() == [True, False, True]


def test_long_answers_are_compared_as_a_whole() -> None:
    start = "Ünder the Sea " * 30
    one, other = comparable_answer(f" {start}a"), comparable_answer(f"{start}b")
    assert one != other
    assert len(one) == len(other) == MAX_ANSWER
    assert one == comparable_answer(f"{start}A\n") == comparable_answer(one)
    assert comparable_answer("x" * MAX_ANSWER) == "x" * MAX_ANSWER
    assert comparable_answer("B ") == "b"
    assert comparable_answer(0) == "0"
    assert comparable_answer(" ") is comparable_answer(None) is None
