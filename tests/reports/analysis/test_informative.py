"""Informative benchmarks and recovery, capped recovery, and the letters that generated answers name."""

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evalsuite.reports import compare
from evalsuite.reports.analysis.informative import informative_names
from evalsuite.reports.headline import recovery_sentence
from evalsuite.reports.measures.agreement import agreement_with_teacher
from evalsuite.reports.measures.letters import letters
from evalsuite.reports.measures.scores import SCORES
from evalsuite.reports.report import Report, build_report
from evalsuite.reports.run import read_manifest, write_manifest
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run
from tests.reports.score_edits import Row, edit_rows

Truth = Callable[[str, str, int | None], float]


def run_of(
    folder: Path,
    benchmarks: list[tuple[str, float | None]],
    teacher: Truth,
    student: Truth,
    protocols: tuple[str, ...] = ("loglikelihood", "generation"),
) -> Path:
    """A teacher and a student on benchmarks with their chance levels."""
    return make_run(
        folder,
        [
            SyntheticBenchmark(name, name.upper(), "knowledge", 400, chance, protocols=protocols)
            for name, chance in benchmarks
        ],
        [
            SyntheticCheckpoint("t", teacher, "teacher"),
            SyntheticCheckpoint("s", student),
        ],
    )


@pytest.fixture
def mixed(tmp_path: Path) -> Report:
    """One benchmark far above chance, one at chance, one of unknown chance, one without named answers."""

    def truth(benchmark: str, protocol: str, context: int | None) -> float:
        return 0.25 if benchmark == "chance" else 0.7

    benchmarks = [("good", 0.25), ("chance", 0.25), ("unknown", None), ("silent", 0.25)]
    run = run_of(tmp_path / "run", benchmarks, truth, lambda *_: 0.5)

    def silence(number: int, row: Row) -> Row:
        detail = row["detail"] | {"extracted": ""}
        return row | {"detail": detail} if number % 5 == 0 and row["checkpoint"] == "t" else row

    edit_rows(run, "silent", "generation", silence)
    return build_report([run])


def test_reasons_name_chance_and_missing_answers(mixed: Report) -> None:
    rows = {(row.benchmark, row.protocol): row for row in mixed.informative}
    assert informative_names(mixed.informative, 0, "loglikelihood") == ("good", "silent")
    assert informative_names(mixed.informative, 0, "generation") == ("good",)
    assert rows["chance", "loglikelihood"].why.startswith(
        "the teacher is not above chance (25.0 %): its lead"
    )
    assert rows["unknown", "generation"].why == "its chance level is not known"
    silent = rows["silent", "generation"]
    assert silent.named == pytest.approx(0.8)
    assert silent.why == ("the teacher names an answer in only 80 % of its responses (at least 90 % needed)")
    assert silent.lead.interval.low > 0
    warning = next(w for w in mixed.warnings if "under generation leaves out" in w)
    assert "CHANCE, UNKNOWN, SILENT" in warning


def test_a_teacher_that_names_90_percent_of_its_answers_is_informative(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", [("edge", 0.25)], lambda *_: 0.7, lambda *_: 0.5, ("generation",))

    def silence(number: int, row: Row) -> Row:
        return row | {"detail": row["detail"] | {"extracted": ""}} if number % 10 == 0 else row

    edit_rows(run, "edge", "generation", silence)
    (row,) = build_report([run]).informative
    assert (row.named, row.why) == (0.9, "")


def test_a_suite_declares_what_does_not_lead(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", [("good", 0.25), ("seen", 0.25)], lambda *_: 0.7, lambda *_: 0.5)
    plan = read_manifest(run)
    reason = "its answers are in the training data"
    told = tuple(replace(each, not_leading=reason if each.name == "seen" else "") for each in plan.benchmarks)
    write_manifest(run, replace(plan, benchmarks=told))
    report = build_report([run])
    assert {row.why for row in report.informative if row.benchmark == "seen"} == {reason}
    assert informative_names(report.informative, 0, "loglikelihood") == ("good",)
    assert report.average(1, "loglikelihood", "informative").benchmarks == ("good",)
    assert report.average(1, "loglikelihood").benchmarks == ("good", "seen")
    rows = csv.DictReader(SCORES.csv(report).splitlines())
    assert {row["not_informative_why"] for row in rows if row["benchmark"] == "seen"} == {reason}
    (warning,) = (w for w in report.warnings if "under log-likelihood leaves out" in w)
    assert warning.endswith(f"leaves out SEEN: {reason}.")


def test_informative_average_is_that_of_its_benchmarks(mixed: Report) -> None:
    row = mixed.average(1, "loglikelihood", "informative")
    scores = {
        (r.benchmark, r.checkpoint): r.score.point for r in mixed.scores if r.protocol == "loglikelihood"
    }
    student, teacher = (np.mean([scores[name, i] for name in ("good", "silent")]) for i in (1, 0))
    assert row.benchmarks == ("good", "silent")
    assert row.recovery.point == pytest.approx(student / teacher)
    assert row.rank == 1
    assert mixed.average(1, "loglikelihood").benchmarks == ("good", "chance", "unknown", "silent")
    agreement = agreement_with_teacher(mixed, 1, "loglikelihood", "informative")
    assert agreement.benchmarks == ("good", "silent")
    assert recovery_sentence(mixed).startswith(
        f"s recovers {100 * row.recovery.point:.1f} % of its teacher under log-likelihood and makes its "
        f"choice on {100 * agreement.agreement.point:.1f} % of the documents"
    )


def test_a_missing_informative_benchmark_prevents_a_rank(tmp_path: Path) -> None:
    benchmarks = [("good", 0.25), ("lacking", 0.25), ("chance", 0.25)]
    run = run_of(tmp_path / "run", benchmarks, lambda b, *_: 0.25 if b == "chance" else 0.7, lambda *_: 0.5)
    for name in ("lacking", "chance"):
        edit_rows(run, name, "loglikelihood", lambda _, row: row if row["checkpoint"] == "t" else None)
    row = build_report([run]).average(1, "loglikelihood", "informative")
    assert (row.benchmarks, row.missing, row.rank) == (("good",), ("lacking",), None)


def test_a_teacher_at_chance_everywhere_measures_nothing(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", [("a", 0.25), ("b", 0.25)], lambda *_: 0.24, lambda *_: 0.26)
    comparison = compare([run], tmp_path / "out")
    said = "Nothing was measured: on no benchmark is 't' above chance with answers that it names."
    assert recovery_sentence(comparison.report) == said
    assert comparison.text.startswith(said)
    assert said in comparison.markdown
    assert [
        w for w in comparison.report.warnings if w.startswith("Nothing was measured under log-likelihood")
    ]
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [row["is_informative"] for row in report["informative"]] == [False] * 4
    assert comparison.report.average(1, "loglikelihood", "informative") is None


def test_capped_recovery_counts_no_gain(tmp_path: Path) -> None:
    def student(benchmark: str, protocol: str, context: int | None) -> float:
        return 0.9 if benchmark == "gained" else 0.4

    run = run_of(tmp_path / "run", [("gained", 0.25), ("lost", 0.25)], lambda *_: 0.6, student)
    report = build_report([run])
    scores = {
        (r.benchmark, r.checkpoint): r.score.point for r in report.scores if r.protocol == "loglikelihood"
    }
    row = report.average(1, "loglikelihood")
    total = scores["gained", 0] + scores["lost", 0]
    assert row.capped_recovery.point == pytest.approx((scores["gained", 0] + scores["lost", 1]) / total)
    assert row.recovery.point == pytest.approx((scores["gained", 1] + scores["lost", 1]) / total)
    interval = row.capped_recovery.interval
    assert interval.low < interval.point < interval.high <= 1


def test_contexts_are_averaged_before_they_are_capped(tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "run",
        [SyntheticBenchmark("niah", "NIAH", "recall", 200, 0.0, (512, 1024), protocols=("generation",))],
        [
            SyntheticCheckpoint("t", lambda *_: 0.5, "teacher"),
            SyntheticCheckpoint("s", lambda b, p, c: 0.8 if c == 512 else 0.1),
        ],
    )
    row = build_report([run]).average(1, "generation")
    assert row.recovery.point < 1
    assert row.capped_recovery.point == pytest.approx(row.recovery.point)


def test_letters_show_who_always_says_a(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", [("good", 0.25)], lambda *_: 0.7, lambda *_: 0.25)

    def say_a(number: int, row: Row) -> Row:
        if row["checkpoint"] == "t":
            return row
        if number % 5 == 0:
            return row | {
                "values": {"acc": 0.0},
                "outcome": "extraction_failed",
                "detail": row["detail"] | {"extracted": ""},
            }
        right = row["detail"]["target"] == "A"
        return row | {
            "values": {"acc": float(right)},
            "outcome": "ok",
            "detail": row["detail"] | {"extracted": " A"},
        }

    edit_rows(run, "good", "generation", say_a)
    teacher, student = build_report([run]).of(letters)
    assert student.letters == {"a": 1.0, "b": 0.0, "c": 0.0, "d": 0.0}
    assert student.named == 0.8
    assert student.accuracy_among_named.point == pytest.approx(0.25, abs=0.06)
    assert not student.is_above_chance
    assert teacher.is_above_chance
    assert sum(teacher.letters.values()) == pytest.approx(1)
    assert teacher.accuracy_among_named.interval.low > 0.5
    assert (teacher.responses, teacher.chance) == (400, 0.25)


def test_accuracy_among_named_is_wider_with_clusters(tmp_path: Path) -> None:
    widths = []
    for size in (0, 20):
        run = make_run(
            tmp_path / str(size),
            [SyntheticBenchmark("a", "A", "knowledge", 400, cluster_size=size)],
            [SyntheticCheckpoint("t", lambda *_: 0.6, "teacher")],
        )
        (row,) = build_report([run]).of(letters)
        assert row.accuracy_among_named.point == pytest.approx(0.6, abs=0.12)
        widths.append(row.accuracy_among_named.interval.width)
    assert widths[1] > 1.5 * widths[0]
