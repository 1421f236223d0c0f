"""Needles against recovery: equal recoveries can hide different recall."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from evalsuite.reports.blocks import Charts, Part
from evalsuite.reports.measures.recall import recall, recall_numbers, recall_section
from evalsuite.reports.report import Report, build_report
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run


def report_of(folder: Path, students: dict[str, float]) -> Report:
    """Students of equal recovery that find these shares of the needles at 512 tokens, and none at 1k."""

    def scores(found: float) -> Callable[[str, str, int | None], float]:
        return lambda benchmark, protocol, context: {None: 0.6, 512: found, 1024: 0.0}[context]

    return build_report(
        [
            make_run(
                folder,
                [
                    SyntheticBenchmark("piqa", "PIQA", "common_sense", 400, protocols=("loglikelihood",)),
                    SyntheticBenchmark(
                        "niah_single_1",
                        "S-NIAH-1",
                        "recall",
                        100,
                        chance=0.0,
                        contexts=(1024, 512),
                        protocols=("generation",),
                    ),
                ],
                [
                    SyntheticCheckpoint("t", scores(0.9), "teacher"),
                    *(SyntheticCheckpoint(name, scores(found)) for name, found in students.items()),
                ],
            )
        ]
    )


def test_students_are_placed_by_recovery_and_needles_of_the_shortest_context(tmp_path: Path) -> None:
    report = report_of(tmp_path, {"looks": 0.8, "forgets": 0.1})
    (figure,) = next(block.figures for block in recall_section(report) if isinstance(block, Charts))
    drawn = json.loads(figure.data)
    (points,) = drawn["data"]
    needles = {
        row.checkpoint: 100 * row.score.point
        for row in report.of(recall)
        if (row.kind, row.context) == ("needles", 512)
    }
    assert points["y"] == pytest.approx([needles[1], needles[2]], rel=1e-4)
    assert points["y"][0] > 60 > 30 > points["y"][1]
    recoveries = [report.average(s, "loglikelihood", "informative").recovery.point for s in (1, 2)]
    assert points["x"] == pytest.approx([100 * each for each in recoveries], rel=1e-4)
    (line,) = drawn["layout"]["shapes"]
    assert line["y0"] == line["y1"] == pytest.approx(needles[0], rel=1e-4)
    assert "Needles in 512 tokens" in figure.caption
    assert [row[0] for row in figure.table.rows] == ["looks", "forgets"]


def test_the_table_begins_with_the_teacher_and_the_student_that_finds_most(tmp_path: Path) -> None:
    report = report_of(tmp_path, {"forgets": 0.1, "looks": 0.8, "some": 0.4})
    numbers = recall_numbers(report)
    assert numbers is not None
    assert [row[0] for row in numbers.rows] == ["t", "looks", "some", "forgets"]


def test_one_student_is_compared_with_none(tmp_path: Path) -> None:
    blocks = recall_section(report_of(tmp_path, {"looks": 0.8}))
    assert not any(isinstance(block, Charts) for block in blocks)
    (part,) = (block for block in blocks if isinstance(block, Part))
    assert part.title == "Scores by context"
