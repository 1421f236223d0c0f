"""Trend: one label in several runs, by date."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from evalsuite.reports.measures.trend import TREND, trend
from evalsuite.reports.report import build_report
from evalsuite.reports.run import read_manifest, write_manifest
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run


@pytest.fixture
def night(tmp_path: Path) -> object:
    """Write a run of one date: the teacher, a student that stays and one whose weights change."""

    def make(date: str, share: float, weights: str) -> Path:
        run = make_run(
            tmp_path / date,
            [SyntheticBenchmark("piqa", "PIQA", "common_sense", 300, chance=0.5)],
            [
                SyntheticCheckpoint("teacher", lambda *_: 0.9, "teacher"),
                SyntheticCheckpoint("fixed", lambda *_: 0.8),
                SyntheticCheckpoint("nightly", lambda *_: 0.9 * share, weights=weights),
            ],
        )
        write_manifest(run, replace(read_manifest(run), created=f"{date}T02:00:00Z"))
        return run

    return make


def test_a_label_whose_weights_change_is_followed_by_date(night: SimpleNamespace) -> None:
    runs = [
        night("2026-11-03", 0.7, "c" * 16),
        night("2026-11-01", 1.0, "a" * 16),
        night("2026-11-02", 0.9, "b" * 16),
    ]
    report = build_report(runs)
    found = [row for row in TREND.cells(report) if row["protocol"] == "loglikelihood"]
    assert [(row["series"], row["run"], row["created"]) for row in found] == [
        ("nightly", day, f"{day}T02:00:00Z") for day in ("2026-11-01", "2026-11-02", "2026-11-03")
    ]
    assert len({row["label"] for row in found}) == 3
    assert TREND.notes(report) == ["Equal weights in several runs, whose scores are one row: fixed."]
    recoveries = [float(str(row["recovery"])) for row in found]
    assert recoveries == sorted(recoveries, reverse=True)
    assert found[0]["change"] is None
    assert [row["change"] for row in found[1:]] == pytest.approx(
        [after - before for before, after in pairwise(recoveries)]
    )


def test_one_run_or_equal_weights_have_no_trend(night: SimpleNamespace) -> None:
    first = night("2026-11-01", 1.0, "a" * 16)
    assert trend(build_report([first])) == []
    assert trend(build_report([first, night("2026-11-02", 1.0, "a" * 16)])) == []
