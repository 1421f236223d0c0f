"""The table of students: verdicts, the lowest share, what teachers cannot do, and the headline."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from evalsuite.reports import compare, load_policy
from evalsuite.reports.headline import headline
from evalsuite.reports.measures.students import STUDENTS, student_rows
from evalsuite.reports.page.sections.students import students_section
from evalsuite.reports.report import Report, build_report
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run

Levels = Callable[[str, str, int | None], float]


def make(run: Path, students: dict[str, Levels], teacher: Levels) -> Report:
    """Choices under both protocols, and needles at 512 and 4,096 tokens."""
    make_run(
        run,
        [
            SyntheticBenchmark("piqa", "PIQA", "common_sense", 800, 0.5),
            SyntheticBenchmark(
                "niah_single_1",
                "S-NIAH-1",
                "recall",
                400,
                0.0,
                protocols=("generation",),
                contexts=(512, 4096),
            ),
        ],
        [
            SyntheticCheckpoint("t", teacher, "teacher"),
            *(SyntheticCheckpoint(name, levels) for name, levels in students.items()),
        ],
    )
    return build_report([run])


def level(loglikelihood: float, generation: float, needles: dict[int, float]) -> Levels:
    def of(benchmark: str, protocol: str, context: int | None) -> float:
        if context is not None:
            return needles[context]
        return loglikelihood if protocol == "loglikelihood" else generation

    return of


def test_a_student_is_worth_what_it_keeps_where_it_loses_most(tmp_path: Path) -> None:
    students = {
        "window": level(0.90, 0.90, {512: 0.95, 4096: 0.05}),
        "whole": level(0.89, 0.89, {512: 0.94, 4096: 0.93}),
        "weak": level(0.70, 0.70, {512: 0.5, 4096: 0.5}),
    }
    report = make(tmp_path / "run", students, level(0.90, 0.90, {512: 0.95, 4096: 0.95}))
    rows = {report.checkpoints[row.checkpoint].label: row for row in student_rows(report)}
    assert list(rows) == ["whole", "weak", "window"]
    assert {name: row.verdict for name, row in rows.items()} == {
        "whole": "keeps",
        "weak": "loses",
        "window": "loses",
    }
    assert rows["window"].name(rows["window"].worst_way) == "needles at 4k"
    assert rows["window"].worst.point == pytest.approx(0.05 / 0.95, abs=0.03)
    assert rows["window"].shares["loglikelihood"].point == pytest.approx(1.0, abs=0.05)
    sentence = headline(report)
    assert sentence.startswith("Ship whole: of its teacher's lead it keeps ")
    assert "; window leads under log-likelihood with " in sentence
    assert sentence.endswith(" % of needles at 4k.")


def test_needles_count_where_the_teacher_finds_half_of_them(tmp_path: Path) -> None:
    report = make(
        tmp_path / "run",
        {"s": level(0.9, 0.9, {512: 0.9, 4096: 0.3})},
        level(0.9, 0.9, {512: 0.95, 4096: 0.3}),
    )
    (row,) = student_rows(report)
    assert row.context == 512
    assert row.shares["needles"].point == pytest.approx(0.9 / 0.95, abs=0.05)


def test_what_a_teacher_cannot_do_is_no_share(tmp_path: Path) -> None:
    report = make(
        tmp_path / "run",
        {"s": level(0.5, 0.9, {512: 0.0, 4096: 0.0})},
        level(0.5, 0.9, {512: 0.1, 4096: 0.0}),
    )
    (row,) = student_rows(report)
    assert "needles" not in row.shares
    share = row.shares.get("loglikelihood")
    assert share is None or share.interval is None
    view = students_section(report)
    assert view is not None
    titles = [column.title for column in view.grid.columns]
    assert "log-likelihood %" not in titles
    assert "generation %" in titles


def test_a_student_without_a_way_that_others_have_is_not_measured(tmp_path: Path) -> None:
    from tests.reports.score_edits import edit_rows

    teacher = level(0.9, 0.9, {512: 0.95, 4096: 0.95})
    make(tmp_path / "run", {"a": teacher, "b": teacher}, teacher)
    for benchmark in ("piqa", "niah_single_1"):
        edit_rows(
            tmp_path / "run",
            benchmark,
            "generation",
            lambda n, row: None if row["checkpoint"] == "b" else row,
        )
    report = build_report([tmp_path / "run"])
    rows = {report.checkpoints[row.checkpoint].label: row for row in student_rows(report)}
    assert rows["b"].verdict == "not measured"
    assert rows["a"].verdict == "keeps"


def test_the_table_has_a_row_per_student_in_every_output(tmp_path: Path) -> None:
    teacher = level(0.9, 0.9, {512: 0.95, 4096: 0.95})
    report = make(tmp_path / "run", {"a": teacher, "b": teacher}, teacher)
    assert [line.split(",")[0] for line in STUDENTS.csv(report).splitlines()] in (
        ["label", "a", "b"],
        ["label", "b", "a"],
    )
    frame = STUDENTS.frame(report)
    assert set(frame["verdict"]) == {"keeps"}
    assert frame["worst_low"].min() > 0.9


def test_a_student_that_gained_is_headlined_with_what_it_retained(tmp_path: Path) -> None:
    gained = level(0.99, 0.99, {512: 0.95, 4096: 0.95})
    report = make(tmp_path / "run", {"s": gained}, level(0.8, 0.8, {512: 0.95, 4096: 0.95}))
    (row,) = student_rows(report)
    assert (row.verdict, row.gained) == ("keeps", ("loglikelihood", "generation"))
    sentence = headline(report)
    assert sentence.startswith("Ship s: of its teacher's lead it keeps ")
    assert sentence.endswith(
        " s is proven above its teacher under log-likelihood and under generation: a gain does not say what "
        "was retained (100.0 % under log-likelihood and 98.7 % under generation of the teacher's right "
        "answers)."
    )
    view = students_section(report)
    assert view is not None
    assert "gained: log-likelihood, generation" in str(view.grid)


def test_mixers_of_the_students_have_their_place_in_the_taxonomy(tmp_path: Path) -> None:
    """In runs that state it."""
    place = {"update": "delta", "decay": "input-dependent", "granularity": "channel"}
    stated = {"mixers": ["kda"] * 4, "taxonomy": {"kda": place}, "state_bytes": 74_752}
    levels = level(0.8, 0.8, {512: 0.9, 4096: 0.9})
    for folder, lineage in (("new", stated), ("old", {})):
        benchmarks = [SyntheticBenchmark("piqa", "PIQA", "common_sense", 50, 0.5)]
        student = SyntheticCheckpoint("s", levels, lineage=lineage)
        make_run(tmp_path / folder, benchmarks, [SyntheticCheckpoint("t", levels, "teacher"), student])
        view = students_section(build_report([tmp_path / folder]))
        assert view is not None
        titles = [column.title for column in view.grid.columns]
        shown = dict(zip(titles, [cell.text for cell in view.grid.rows[0]], strict=True))
        if folder == "new":
            found = [shown[title] for title in ("update", "decay", "decay per", "state")]
            assert found == ["delta", "input-dependent", "channel", "73 KiB"]
        else:
            assert not {"update", "decay", "decay per", "state"} & set(titles)


def test_verdicts_are_those_of_a_policy(tmp_path: Path) -> None:
    students = {
        "window": level(0.90, 0.90, {512: 0.95, 4096: 0.05}),
        "whole": level(0.89, 0.89, {512: 0.94, 4096: 0.93}),
        "weak": level(0.70, 0.70, {512: 0.5, 4096: 0.5}),
    }
    teacher = level(0.90, 0.90, {512: 0.95, 4096: 0.95})
    make(tmp_path / "run", students, teacher)
    rule = {"metric": "recovery", "min": 0.9, "protocol": "loglikelihood"}

    def verdicts(*rules: dict[str, object]) -> tuple[dict[str, str], str]:
        (tmp_path / "mine.yaml").write_text(json.dumps({"schema": 2, "rules": list(rules)}))
        policy = load_policy(tmp_path / "mine.yaml")
        report = compare([tmp_path / "run"], tmp_path / "out", policy=policy, samples=False).report
        rows = student_rows(report)
        assert (tmp_path / "out" / "students.csv").read_text().count("\n") == 4
        assert "Verdicts are those of policy mine.yaml" in (tmp_path / "out" / "index.html").read_text()
        return {report.checkpoints[row.checkpoint].label: row.verdict for row in rows}, headline(report)

    found, sentence = verdicts(rule)
    assert found == {"window": "passes", "whole": "passes", "weak": "fails"}
    assert sentence.startswith("Ship whole: it passes policy mine.yaml, and of its teacher's lead it keeps ")
    found, sentence = verdicts(rule | {"checkpoints": ["window"]})
    assert found == {"window": "passes", "whole": "not gated", "weak": "not gated"}
    assert sentence.startswith("Ship window: it passes policy mine.yaml")
    found, sentence = verdicts({"metric": "score", "min": 0.999, "protocol": "generation"})
    assert set(found.values()) == {"fails"}
    assert sentence.startswith("No student passes policy mine.yaml. whole loses least: ")
    assert verdicts({"metric": "kl", "max": 1.0})[0] == dict.fromkeys(students, "not measured")


def test_a_headline_says_how_many_others_may_lose_as_little(tmp_path: Path) -> None:
    students = {
        "first": level(0.70, 0.70, {512: 0.6, 4096: 0.60}),
        "second": level(0.70, 0.70, {512: 0.6, 4096: 0.59}),
        "last": level(0.70, 0.70, {512: 0.3, 4096: 0.05}),
    }
    make(tmp_path / "run", students, level(0.90, 0.90, {512: 0.95, 4096: 0.95}))
    sentence = headline(build_report([tmp_path / "run"]))
    assert " loses least, though its interval meets that of 1 other: it keeps " in sentence
