"""Incomplete cells are not measured, errors count as wrong, and warnings are part of the verdict."""

import json
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evalsuite.foundation import DataError, read_json, write_json
from evalsuite.reports import compare, policy_from_options, run_gate
from evalsuite.reports.run import read_manifest
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run
from tests.reports.score_edits import edit_rows

FIXTURES = Path(__file__).parents[1] / "fixtures"
Row = dict[str, Any]


@pytest.fixture(autouse=True)
def _no_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


def copy_fixture(to: Path, change: Callable[[int, Row], Row | None], name: str = "passing") -> Path:
    """Copy a fixture with changed score rows."""
    shutil.copytree(FIXTURES / name, to)
    for benchmark, protocol in read_manifest(to).cells():
        edit_rows(to, benchmark.name, protocol, change)
    return to


def first_half(who: str) -> Callable[[int, Row], Row | None]:
    """Remove the second half of a checkpoint's rows, as an interrupted run leaves them."""
    sizes = {"facts": 60, "needle": 30}
    return lambda i, row: row if row["checkpoint"] != who or i <= sizes[row["benchmark"]] else None


def identical(folder: Path, **facts: Any) -> Path:
    """A teacher, and a student that gives the same responses to 1,000 documents."""
    return make_run(
        folder,
        [SyntheticBenchmark("facts", "Facts", "knowledge", 500, protocols=("loglikelihood",))],
        {"teacher": 0.8, "student": 0.8},
        rho=1.0,
    )


@pytest.mark.parametrize("who", ["student", "teacher"])
def test_half_of_the_score_rows_is_not_measured(tmp_path: Path, who: str) -> None:
    run = copy_fixture(tmp_path / "run", first_half(who))
    verdict = run_gate([run], policy_from_options(min_recovery=0.9))
    assert verdict.exit_code == 3
    assert f"facts: '{who}' has 60 of 120 documents under log-likelihood" in verdict.text


def test_one_missing_document_is_not_measured(tmp_path: Path) -> None:
    run = copy_fixture(
        tmp_path / "run",
        lambda i, row: None if (row["checkpoint"], row["benchmark"], i) == ("student", "needle", 4) else row,
    )
    verdict = run_gate([run], policy_from_options(min_recovery=0.9))
    assert verdict.exit_code == 3
    assert "needle at 256 tokens: 'student' has 59 of 60 documents under generation" in verdict.text


def test_errors_count_as_wrong(tmp_path: Path) -> None:
    run = identical(tmp_path / "run")
    assert run_gate([run], policy_from_options(min_recovery=0.95)).exit_code == 0
    edit_rows(
        run,
        "facts",
        "loglikelihood",
        lambda i, row: (
            row | {"outcome": "error", "values": {}} if row["checkpoint"] == "student" and i <= 95 else row
        ),
    )
    verdict = run_gate([run], policy_from_options(min_recovery=0.95))
    assert verdict.exit_code == 1
    (result,) = verdict.results
    assert result.documents == 500
    assert "95 log-likelihood responses of 'student' are errors and count as wrong" in verdict.text


def test_perplexity_with_errors_is_not_measured(tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "run",
        [
            SyntheticBenchmark(
                "wikitext", "WikiText", "language_modeling", 60, None, (), ("loglikelihood",), perplexity=True
            )
        ],
        {"teacher": 3.0, "student": 3.1},
    )
    edit_rows(
        run,
        "wikitext",
        "loglikelihood",
        lambda i, row: (
            row | {"outcome": "error", "values": {}} if row["checkpoint"] == "student" and i <= 2 else row
        ),
    )
    report = compare([run], tmp_path / "out").report
    assert [row.checkpoint for row in report.scores] == [0]
    assert any("WikiText: 'student' has 58 of 60 documents" in warning for warning in report.warnings)


def test_incomplete_cells_are_shown_and_compare_nothing(tmp_path: Path) -> None:
    run = copy_fixture(tmp_path / "run", first_half("student"))
    made = compare([run], tmp_path / "out")
    assert [row.checkpoint for row in made.report.scores] == [0, 0, 0]
    assert made.report.gaps == ()
    assert all(row.rank is None and row.recovery.point is None for row in made.report.averages)
    page = made.page.read_text().replace("&#39;", "'")
    rest = page[: page.index('<details class="warnings"')] + page[page.index("</details>") :]
    assert "60 of 120" in rest
    assert "60 of 120" in made.text
    assert "60 of 120" in (tmp_path / "out" / "report.md").read_text()
    scores = (tmp_path / "out" / "scores.csv").read_text().splitlines()
    assert sum("incomplete" in line for line in scores[1:]) == 3
    incomplete = json.loads((tmp_path / "out" / "report.json").read_text()).get("incomplete", [])
    assert [(each["documents"], each["planned"]) for each in incomplete] == [(60, 120), (60, 120), (30, 60)]


def test_warnings_are_part_of_the_verdict(tmp_path: Path) -> None:
    run = copy_fixture(
        tmp_path / "run",
        lambda i, row: (
            row | {"outcome": "error", "values": {}} if row["checkpoint"] == "student" and i <= 2 else row
        ),
    )
    verdict = run_gate([run], policy_from_options(min_recovery=0.9), out=tmp_path / "gate")
    warning = "Facts: 2 log-likelihood responses of 'student' are errors"
    assert warning in verdict.text
    suite = ET.parse(tmp_path / "gate" / "junit.xml").getroot().find("testsuite")
    assert suite is not None
    assert warning in (suite.findtext("system-out") or "")
    assert warning in (tmp_path / "gate" / "gate.md").read_text().replace("\\", "")
    assert any(
        warning in each for each in json.loads((tmp_path / "gate" / "gate.json").read_text())["warnings"]
    )


def test_step_summary_that_cannot_be_written_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "nowhere" / "summary.md"))
    try:
        verdict = run_gate([FIXTURES / "passing"], policy_from_options(min_recovery=0.9))
    except OSError as error:
        pytest.fail(f"no verdict: {error}")
    assert verdict.exit_code == 0
    assert "summary.md" in verdict.text


def test_plan_without_document_counts_is_refused(tmp_path: Path) -> None:
    plan = read_json(FIXTURES / "passing" / "run.json")
    for benchmark in plan["benchmarks"]:
        for protocol in benchmark["protocols"].values():
            protocol.pop("documents", None)
    write_json(tmp_path / "run.json", plan)
    with pytest.raises(
        DataError, match=r"run\.json: 'benchmarks\[0\]\.protocols\.\w+\.documents' is required"
    ):
        read_manifest(tmp_path)


def test_two_teacher_families_have_cells_of_their_own(tmp_path: Path) -> None:
    """The second family has another tokenizer, hence other prompts for the same documents."""
    teachers = [SyntheticCheckpoint(name, lambda b, p, c: 0.8, "teacher") for name in ("llama", "qwen")]
    students = [
        SyntheticCheckpoint(
            f"{teacher.label}-student",
            lambda b, p, c: 0.78,
            lineage={"teacher": {"weights_id": teacher.weights_id, "label": teacher.label}},
        )
        for teacher in teachers
    ]
    run = make_run(
        tmp_path / "run",
        [SyntheticBenchmark("facts", "Facts", "knowledge", 400, protocols=("loglikelihood",))],
        [*teachers, *students],
        rho=0.95,
    )
    edit_rows(
        run,
        "facts",
        "loglikelihood",
        lambda i, row: (
            row | {"prompt_hash": f"q{row['doc_id']}"} if row["checkpoint"].startswith("qwen") else row
        ),
    )
    verdict = run_gate([run], policy_from_options(min_recovery=0.8))
    assert {result.checkpoint: result.outcome for result in verdict.results} == {
        "llama-student": "pass",
        "qwen-student": "pass",
    }
    report = compare([run], tmp_path / "out").report
    assert {row.checkpoint: (row.rank, row.missing) for row in report.averages if row.scope == "all"} == {
        0: (None, ()),
        1: (1, ()),
        2: (None, ()),
        3: (1, ()),
    }


def test_benchmarks_above_the_teacher_are_all_named(tmp_path: Path) -> None:
    truth = {"below": 0.1, "above": 0.5}
    names = [f"b{i}" for i in range(6)]
    run = make_run(
        tmp_path / "run",
        [
            *(SyntheticBenchmark(name, name.upper(), "knowledge", 400) for name in truth),
            *(
                SyntheticBenchmark(name, name.upper(), "reasoning", 400, protocols=("loglikelihood",))
                for name in names
            ),
        ],
        [
            SyntheticCheckpoint(
                "t", lambda b, p, c: truth.get(b, 0.5) if p == "generation" else 0.5, "teacher"
            ),
            SyntheticCheckpoint("s", lambda b, p, c: 0.8),
        ],
        rho=0.9,
    )
    warnings = compare([run], tmp_path / "out").report.warnings
    found = [warning for warning in warnings if warning.startswith("Significantly above their teacher")]
    assert len(found) == 2
    loglikelihood, generation = found
    assert all(name.upper() in loglikelihood for name in names)
    assert "ABOVE" in generation
    assert "BELOW (the teacher is below chance)" in generation
