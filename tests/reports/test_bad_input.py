"""What is dubious is refused before a page exists, or is a warning on the page; never averaged away."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evalsuite.foundation import EvalsuiteError, read_json, write_json
from evalsuite.reports import RunSelection, compare, policy_from_options, run_gate
from evalsuite.reports.records.score_files import read_rows, score_path, score_paths
from tests.reports.conftest import SyntheticBenchmark, make_run
from tests.reports.score_edits import all_rows, write_unchecked

Row = dict[str, Any]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Teacher and student, sixty facts both ways."""
    answerers = {"teacher": 0.8, "student": 0.7}
    return make_run(tmp_path / "run", [SyntheticBenchmark("facts", "Facts", "knowledge", 60)], answerers)


def edit(run: Path, change: Callable[[int, Row], Row | None], protocol: str = "loglikelihood") -> None:
    """Apply `change` to every numbered row, the teacher's first; rows for which it gives None vanish."""
    files = [list(read_rows(path).values()) for path in score_paths(run, "facts", protocol)]
    files.sort(key=lambda rows: rows[0]["checkpoint"] != "teacher")
    number = 0
    for rows in files:
        path = score_path(run, "facts", protocol, rows[0]["fingerprint"])
        left = [change(number + i, row) for i, row in enumerate(rows, 1)]
        number += len(rows)
        path.unlink()
        if any(left):
            write_unchecked(path, [row for row in left if row is not None])


def plan(run: Path, change: Callable[[Row], Row]) -> None:
    """Change the plan."""
    write_json(run / "run.json", change(read_json(run / "run.json")))


def at(number: int, **changes: Any) -> Callable[[int, Row], Row]:
    """Change one row."""
    return lambda i, row: row | changes if i == number else row


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (at(5, values={"acc": float("nan")}), "row 5: 'acc' is not a finite number"),
        (at(5, values={"acc": float("inf")}), "row 5: 'acc' is not a finite number"),
        (at(5, chance=float("nan")), "row 5: 'chance' is not a finite number"),
        (at(5, values={"acc": 71.0}), "row 5: acc = 71; a score is a fraction"),
        (at(5, values={"exact": 1.0}), "row 5: 'values' lacks acc"),
        (at(5, protocol="generation"), "row 5: another protocol than row 1 ('loglikelihood')"),
        (at(5, outcome="fine"), "row 5: 'outcome' = 'fine'; expected one of ok"),
        (at(5, doc_id=None), "row 5: 'doc_id' is missing"),
    ],
)
def test_invalid_score_rows_are_refused(run: Path, tmp_path: Path, change: Any, message: str) -> None:
    edit(run, change)
    with pytest.raises(EvalsuiteError, match=r"facts\.loglikelihood\.\w+\.parquet") as caught:
        compare([run], tmp_path / "out")
    assert message in str(caught.value)
    assert caught.value.exit_code >= 64
    assert not (tmp_path / "out").exists()
    with pytest.raises(EvalsuiteError, match=r"facts\.loglikelihood\.\w+\.parquet"):
        run_gate([run], policy_from_options(min_recovery=0.5))


@pytest.mark.parametrize("without", [range(121), [7]], ids=["every row", "one row"])
def test_rows_without_the_planned_cluster_are_refused(run: Path, tmp_path: Path, without: Any) -> None:
    """They would count as independent, with intervals that are too narrow."""
    plan(run, lambda p: p | {"benchmarks": [p["benchmarks"][0] | {"cluster_column": "passage"}]})
    for protocol in ("loglikelihood", "generation"):
        edit(run, lambda i, row: row | {"cluster": None if i in without else f"c{i % 6}"}, protocol)
    message = (
        r"facts\.\w+\.\w+\.parquet, row \d+: 'cluster' is missing.*'facts'.*'passage'.*"
        r"evalsuite run … --score-only"
    )
    with pytest.raises(EvalsuiteError, match=message):
        compare([run], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(EvalsuiteError, match=message):
        run_gate([run], policy_from_options(min_recovery=0.5))


def test_misnamed_score_file_is_refused(run: Path, tmp_path: Path) -> None:
    edit(run, lambda i, row: row | {"benchmark": "piqa"})
    with pytest.raises(EvalsuiteError, match=r"facts\.loglikelihood\.\w+\.parquet: has score rows of piqa"):
        compare([run], tmp_path / "out")


def test_repeated_key_is_refused(run: Path, tmp_path: Path) -> None:
    path = score_paths(run, "facts", "generation")[0]
    rows = list(read_rows(path).values())
    write_unchecked(path, [*rows, rows[7]])
    with pytest.raises(EvalsuiteError, match=r"row 61: repeats the key of row 8"):
        compare([run], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def without_teacher(run: Path) -> None:
    """No record and no plan of a teacher."""
    for protocol in ("loglikelihood", "generation"):
        edit(run, lambda i, row: row if row["checkpoint"] == "student" else None, protocol)
    plan(run, lambda p: p | {"checkpoints": [c for c in p["checkpoints"] if c["role"] == "student"]})


def teacher_silent(run: Path) -> None:
    """The teacher is in the plan and answered nothing when it had to write."""
    edit(run, lambda i, row: row if row["checkpoint"] == "student" else None, "generation")


def teacher_stranger(run: Path) -> None:
    """The student says that it comes from another teacher."""

    def change(p: Row) -> Row:
        p["checkpoints"][1]["lineage"] = {"teacher": {"weights_id": "f" * 16, "path": "elsewhere"}}
        return p

    plan(run, change)


def fewer_documents(run: Path) -> None:
    """The student answered only the first forty."""
    edit(run, lambda i, row: row if row["checkpoint"] == "teacher" or i <= 100 else None)


def other_documents(run: Path) -> None:
    """The student answered none that the teacher did."""
    edit(
        run,
        lambda i, row: row | {"doc_id": row["doc_id"][::-1] + "0"} if row["checkpoint"] == "student" else row,
    )


def other_words(run: Path) -> None:
    """Some of the student's questions were put in other words."""
    edit(run, lambda i, row: row | {"prompt_hash": "other"} if 61 <= i <= 64 else row)


def errors(run: Path) -> None:
    """Some answers could not be had."""
    edit(run, lambda i, row: row | {"outcome": "error", "values": {}} if 61 <= i <= 64 else row, "generation")


@pytest.mark.parametrize(
    ("spoil", "warning"),
    [
        (
            without_teacher,
            "No teacher among the checkpoints: the report has scores, but no recovery and no gap.",
        ),
        (teacher_silent, "Facts: 'teacher' has 0 of 60 documents under generation: not measured."),
        (teacher_stranger, "'student' was distilled from another teacher (ffffffffffffffff)"),
        (fewer_documents, "Facts: 'student' has 40 of 60 documents under log-likelihood: not measured."),
        (
            other_documents,
            "'student' has 0 of 60 documents under log-likelihood (its teacher lacks 60): not measured.",
        ),
        (
            other_words,
            "'student' has 56 of 60 documents under log-likelihood (4 have other prompts than its teacher's)",
        ),
        (errors, "4 generation responses of 'student' are errors and count as wrong"),
    ],
)
def test_excluded_data_is_a_warning_in_all_outputs(
    run: Path, tmp_path: Path, spoil: Callable[[Path], None], warning: str
) -> None:
    spoil(run)
    made = compare([run], tmp_path / "out")
    assert any(warning in said for said in made.report.warnings), made.report.warnings
    page = made.page.read_text().replace("&#39;", "'")
    assert warning in page[page.index('<details class="warnings"') :]
    assert warning in (tmp_path / "out" / "report.md").read_text().replace("\\", "")
    assert warning in made.text


def test_only_common_documents_count(run: Path, tmp_path: Path) -> None:
    fewer_documents(run)
    assert compare([run], tmp_path / "strict").report.average(1, "loglikelihood") is None
    report = compare([run], tmp_path / "out", selection=RunSelection(min_coverage=0.6)).report
    rows = all_rows(run, "facts", "loglikelihood")
    mine = {row["doc_id"]: row["values"]["acc"] for row in rows if row["checkpoint"] == "student"}
    theirs = {row["doc_id"]: row["values"]["acc"] for row in rows if row["checkpoint"] == "teacher"}
    assert len(mine) == 40
    expected = sum(mine.values()) / sum(theirs[document] for document in mine)
    assert report.average(1, "loglikelihood").recovery.point == pytest.approx(expected)
    assert expected != pytest.approx(sum(mine.values()) / 40 / (sum(theirs.values()) / 60), abs=1e-4)


def test_score_files_that_the_manifest_names_and_the_folder_lacks_are_named(tmp_path: Path) -> None:
    """Of a benchmark without files, and of one checkpoint's; the page shows the rest."""
    names = ("facts", "gone", "half")
    run = make_run(
        tmp_path / "run",
        [SyntheticBenchmark(name, name.title(), "knowledge", 60) for name in names],
        {"teacher": 0.8, "student": 0.7},
    )
    for protocol in ("loglikelihood", "generation"):
        for path in score_paths(run, "gone", protocol):
            path.unlink()
        for path in score_paths(run, "half", protocol):
            if next(iter(read_rows(path).values()))["checkpoint"] == "student":
                path.unlink()
    made = compare([run], tmp_path / "out")
    assert {row.benchmark for row in made.report.scores if row.checkpoint == 1} == {"facts"}
    averages = [row for row in made.report.averages if (row.checkpoint, row.scope) == (1, "all")]
    assert [row.missing for row in averages] == [("gone", "half")] * 2
    assert "missing gone, half" in made.page.read_text()
    results = run_gate([run], policy_from_options(min_recovery=0.5)).results
    assert [each.outcome for each in results] == ["unmeasured"] * 2
    for each in results:
        for checkpoint, benchmark in (("teacher", "gone"), ("student", "gone"), ("student", "half")):
            assert f"{benchmark}: '{checkpoint}' has 0 of 60 documents" in each.why
