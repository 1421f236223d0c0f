"""Gaps before and after tuning: which checkpoints belong together, and the interaction of four of them."""

from pathlib import Path
from typing import Any

import pytest

from evalsuite.reports import RunSelection, compare
from evalsuite.reports.measures.tuning import TUNING, tunings
from evalsuite.reports.report import build_report
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run

SCORES = {
    "t": (0.8, 0.8),
    "s": (0.7, 0.6),
    "t-tuned": (0.85, 0.9),
    "s-tuned": (0.7, 0.4),
    "other": (0.5, 0.5),
}
"""Under log-likelihood and generation."""
STARTS = {"t-tuned": "t", "s-tuned": "s"}


@pytest.fixture(params=[True, False], ids=["tuned teacher", "same teacher"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, bool]:
    def model(label: str) -> SyntheticCheckpoint:
        ancestors = (
            [{"label": "first"}, {"weights_id": model(STARTS[label]).weights_id}] if label in STARTS else []
        )
        lineage = {"recipe": {"name": "sft", "hash": "a"}, "ancestors": ancestors}
        role = "teacher" if label == "t" else "student"
        return SyntheticCheckpoint(
            label, lambda b, protocol, c: SCORES[label][protocol == "generation"], role, lineage=lineage
        )

    labels = [label for label in SCORES if request.param or label != "t-tuned"]
    make_run(
        tmp_path / "run",
        [
            SyntheticBenchmark("arc_easy", "ARC-Easy", "knowledge", 400),
            SyntheticBenchmark("piqa", "PIQA", "common_sense", 300),
        ],
        [model(label) for label in labels],
    )
    return compare([tmp_path / "run"], tmp_path / "out").report, request.param


def test_a_named_teacher_is_no_student_of_its_own(made: tuple[Any, bool], tmp_path: Path) -> None:
    if not made[1]:
        pytest.skip("has no tuned teacher")
    report = build_report([tmp_path / "run"], RunSelection(teacher="t-tuned"))
    label = [each.label for each in report.checkpoints]
    for row in (rows := tunings(report)):
        assert (label[row.before], label[row.after]) == ("s", "s-tuned")
        assert label[row.teacher_before] == label[row.teacher_after] == "t-tuned"
    assert len(rows) == 2


def test_the_change_is_the_drop_after_less_the_drop_before(made: tuple[Any, bool]) -> None:
    report, has_tuned_teacher = made
    label = [each.label for each in report.checkpoints]
    rows = tunings(report)
    assert [(label[row.before], label[row.after], row.protocol) for row in rows] == [
        ("s", "s-tuned", "loglikelihood"),
        ("s", "s-tuned", "generation"),
    ]
    for row in rows:
        assert label[row.teacher_after] == ("t-tuned" if has_tuned_teacher else "t")
        drop = {each.label: report.average(i, row.protocol).drop for i, each in enumerate(report.checkpoints)}
        tuned = drop["t-tuned"].point if has_tuned_teacher else 0.0
        assert row.drop_before.point == pytest.approx(drop["s"].point)
        assert row.drop_after.point == pytest.approx(drop["s-tuned"].point - tuned)
        assert row.change.point == pytest.approx(row.drop_after.point - row.drop_before.point)
        assert row.change.low < row.change.point < row.change.high
    assert rows[1].change.low > 0
    assert len(TUNING.cells(report)) == 2
