"""What counts as a named answer follows the outcome: in every measure a guess is no answer."""

import csv
from pathlib import Path
from typing import Any

import pytest

from evalsuite.foundation.taxonomy import FAILURES, OUTCOME_MEANINGS
from evalsuite.reports import compare
from evalsuite.reports.admission import AdmissionRule, admit
from evalsuite.reports.analysis.warnings import teachers_below_chance
from evalsuite.reports.measures.agreement import agreements
from evalsuite.reports.measures.gap import GAP
from evalsuite.reports.measures.letters import letters
from evalsuite.reports.measures.scores import SCORES
from evalsuite.reports.report import Report, build_report
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run
from tests.reports.score_edits import Row, edit_rows


def run_with(folder: Path, outcome: str, extracted: str | None = None, right: float = 0.7) -> Path:
    """A run in which every third response of both models has an outcome; None keeps its extracted answer."""
    checkpoints = [
        SyntheticCheckpoint("t", lambda *_: right, "teacher"),
        SyntheticCheckpoint("s", lambda *_: right - 0.2 if right > 0.5 else right),
    ]
    run = make_run(folder, [SyntheticBenchmark("quiz", "Quiz", "knowledge", 300)], checkpoints)

    def change(number: int, row: Row) -> Row:
        if number % 3:
            return row
        detail = row["detail"] if extracted is None else row["detail"] | {"extracted": extracted}
        return row | {"outcome": outcome, "detail": detail}

    edit_rows(run, "quiz", "generation", change)
    return Path(run)


def measures(report: Report) -> list[Any]:
    return [
        report.of(letters),
        report.of(agreements).by_benchmark,
        report.of(agreements).by_scope,
        report.informative,
    ]


@pytest.mark.parametrize("outcome", ["guessed", "ran_on"])
def test_an_answer_that_the_response_does_not_name_is_none(tmp_path: Path, outcome: str) -> None:
    run = run_with(tmp_path / "one", outcome)
    silent = run_with(tmp_path / "silent", "extraction_failed", "")
    named = run_with(tmp_path / "named", "ok")
    report = build_report([run])
    assert measures(report) == measures(build_report([silent])) != measures(build_report([named]))
    assert [row.named for row in report.of(letters)] == pytest.approx([2 / 3, 2 / 3])
    rule = AdmissionRule(min_documents=100)
    (decision,), (free,) = (admit(each, "t", rule) for each in (run, named))
    assert free.is_admitted
    assert decision.protocols[1].named == pytest.approx(2 / 3)
    assert not decision.is_admitted


def test_a_teacher_below_chance_is_said_to_name_no_choice(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", "guessed", right=0.1)
    report = build_report([run])
    (warning,) = teachers_below_chance(report.checkpoints, report.gaps)
    assert "(33 % of its responses name no choice)" in warning


def test_tables_and_page_list_every_failure(tmp_path: Path) -> None:
    report = build_report([run_with(tmp_path / "run", "guessed")])
    generated = [r for r in csv.DictReader(SCORES.csv(report).splitlines()) if r["protocol"] == "generation"]
    assert [(row["guessed"], row["ran_on"]) for row in generated] == [("100", "0")] * 2
    for row in csv.DictReader(GAP.csv(report).splitlines()):
        assert float(row["student_share_guessed"]) == pytest.approx(1 / 3)
        assert all(row[f"explained_{name}"] for name in FAILURES)
    compare([tmp_path / "run"], tmp_path / "page")
    html = (tmp_path / "page" / "index.html").read_text()
    assert all(f'<li class="{name}"><i></i>{OUTCOME_MEANINGS[name].title}</li>' in html for name in FAILURES)
    assert "guessed 33.3 %" in html
