"""Recall as three numbers, and tolerance curves, against values counted by hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evalsuite.reports.analysis.bootstrap_sample import Estimate
from evalsuite.reports.exports.markdown import report_markdown
from evalsuite.reports.measures.agreement import agreement_with_teacher, tolerance_of, tolerances
from evalsuite.reports.measures.agreement.tolerance import critical, shortfall
from evalsuite.reports.measures.recall import correlations, recall, recall_correlations
from evalsuite.reports.report import Report, build_report
from evalsuite.reports.statistics.intervals import Interval
from evalsuite.tasks.benchmark import load_benchmark
from evalsuite.tasks.recall import recall_numbers
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run

RULER_TASKS = recall_numbers(load_benchmark("ruler_vt"))["ruler"].tasks


def recall_run(folder: Path, ruler: tuple[str, ...]) -> Path:
    """RULER tasks at two contexts, two LongBench sets, and a recall task that is none of these."""
    kinds = [
        *((name, "ruler", (512, 1024)) for name in ruler),
        *((f"longbench_{name}", "longbench", ()) for name in ("a", "b")),
        ("mqar", None, ()),
    ]
    return make_run(
        folder,
        [
            SyntheticBenchmark(
                name, name, "recall", 40, 0.0, contexts, protocols=("generation",), group=group
            )
            for name, group, contexts in kinds
        ],
        [
            SyntheticCheckpoint("t", lambda b, p, c: 0.9, "teacher"),
            SyntheticCheckpoint("s", lambda b, p, c: 0.2 if c == 1024 else 0.6),
        ],
    )


def test_recall_is_three_numbers(tmp_path: Path) -> None:
    report = build_report([recall_run(tmp_path / "run", RULER_TASKS)])
    rows = {(row.checkpoint, row.kind, row.context): row for row in report.of(recall)}
    assert {key[1:] for key in rows} == {
        *((kind, context) for kind in ("needles", "ruler") for context in (512, 1024, None)),
        ("longbench", None),
    }
    scores = {(r.checkpoint, r.benchmark, r.context): r.score.point for r in report.scores}
    for context in (512, 1024):
        mean = np.mean([scores[1, name, context] for name in RULER_TASKS])
        assert rows[1, "ruler", context].score.point == pytest.approx(mean)
    needles = [scores[1, f"niah_single_{i}", c] for i in (1, 2, 3) for c in (512, 1024)]
    assert rows[1, "needles", None].score.point == pytest.approx(np.mean(needles))
    longbench = rows[1, "longbench", None]
    assert longbench.tasks == ("longbench_a", "longbench_b")
    sets = [[scores[i, name, None] for name in longbench.tasks] for i in (1, 0)]
    assert longbench.recovery.point == pytest.approx(np.mean(sets[0]) / np.mean(sets[1]))
    interval = longbench.score.interval
    assert 0 <= interval.low < interval.point < interval.high <= 1


def test_a_mean_over_a_part_of_ruler_is_undefined(tmp_path: Path) -> None:
    some = (*RULER_TASKS[:3], "ruler_vt")
    report = build_report([recall_run(tmp_path / "run", some)])
    row = next(r for r in report.of(recall) if (r.checkpoint, r.kind, r.context) == (1, "ruler", 512))
    assert row.score.interval is None
    assert row.score.why.startswith("9 of 13 tasks are missing: niah_multikey_1, ")
    needles = next(r for r in report.of(recall) if (r.checkpoint, r.kind, r.context) == (1, "needles", 512))
    assert needles.score.interval is not None
    # The needles alone are no number of RULER at a context, and an undefined one over all.
    report = build_report([recall_run(tmp_path / "needles", RULER_TASKS[:3])])
    rows = [row for row in report.of(recall) if row.kind == "ruler"]
    assert {(row.context, row.score.interval) for row in rows} == {(None, None)}


def test_shortfall_and_critical_tolerance() -> None:
    lost = shortfall(np.array([0.5, 0.9, 1.0, 0.0, 0.3]), np.array([1.0, 0.9, 0.5, 0.0, 0.4]))
    assert lost == pytest.approx([0.5, 0.0, 0.0, 0.0, 0.25])
    columns = np.array([[0.5, 0.1], [0.0, 0.2], [0.25, 0.3], [0.1, 0.0]])
    even = np.full(4, 0.25)
    assert critical(columns, even, 0.5) == pytest.approx([0.1, 0.1])
    assert critical(columns, even, 1.0) == pytest.approx([0.5, 0.3])
    assert critical(columns, np.array([0.7, 0.1, 0.1, 0.1]), 0.5) == pytest.approx([0.5, 0.1])


def test_curve_counts_benchmarks_within_alpha(report: Report) -> None:
    row = tolerance_of(report, 2, "loglikelihood")
    scores = {
        (r.checkpoint, r.benchmark): r.score.point
        for r in report.scores
        if r.protocol == "loglikelihood" and r.benchmark != "wikitext"
    }
    lost = [max(0.0, 1 - scores[2, name] / scores[0, name]) for name in row.benchmarks]
    assert row.critical_half.point == pytest.approx(min(lost))
    assert row.critical_all == pytest.approx(max(lost))
    for alpha, share in zip(row.alphas, row.curve, strict=True):
        assert share.point == pytest.approx(np.mean([each <= alpha for each in lost]))
        assert 0 <= share.low <= share.point <= share.high <= 1
    assert [share.point for share in row.curve] == sorted(share.point for share in row.curve)
    agreement = agreement_with_teacher(report, 2, "loglikelihood")
    assert row.documents[0] == pytest.approx(1 - agreement.lost.point)
    assert row.critical_half.low < row.critical_half.high


def test_the_teacher_has_no_curve_and_a_better_student_needs_no_tolerance(tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "run",
        [SyntheticBenchmark(name, name, "knowledge", 200) for name in "ab"],
        {"t": 0.5, "s": 0.9},
    )
    report = build_report([run])
    assert {row.checkpoint for row in report.of(tolerances)} == {1}
    row = tolerance_of(report, 1, "loglikelihood", "informative")
    assert row.critical_all == row.critical_half.high == 0
    assert row.curve[0].low == 1


def test_recovery_and_needles_correlate_over_students(tmp_path: Path) -> None:
    """Six pure students in opposite orders, and two with windows that recover and find most."""
    pure = [(0.40 + 0.06 * i, 0.60 - 0.1 * i, {"mixers": ["kda"]}) for i in range(6)]
    windows = [(0.85, 0.9, {"mixers": ["sliding_window"], "windows": {"sliding_window": 8}})] * 2
    students = [
        SyntheticCheckpoint(
            f"s{i}",
            lambda b, p, c, scores=scores: scores[b != "facts"],
            lineage={"recipe": "r", "seed": i, **lineage},
        )
        for i, (*scores, lineage) in enumerate([*pure, *windows])
    ]
    run = make_run(
        tmp_path,
        [
            SyntheticBenchmark("facts", "F", "knowledge", 400, protocols=("loglikelihood",)),
            SyntheticBenchmark("niah_single_1", "N", "recall", 200, 0.0, (512,), protocols=("generation",)),
        ],
        [SyntheticCheckpoint("t", lambda *_: 0.95, "teacher"), *students],
    )
    report = build_report([run])
    found = {row.students: row for row in report.of(correlations)}
    assert set(found) == {"all", "pure"}
    assert (found["pure"].count, found["pure"].context) == (6, 512)
    assert found["pure"].rho == pytest.approx(-1.0)
    assert (found["all"].count, found["all"].rho > -0.7) == (8, True)
    assert "Spearman's ρ of recovery under log-likelihood and needles in 512 tokens" in report_markdown(
        report
    )

    def rho(*needles: float) -> float:
        shares = dict(zip(range(1, 9), needles, strict=True))
        rows = [
            replace(row, score=Estimate(Interval(shares[row.checkpoint], 0.0, 1.0, "")))
            for row in report.of(recall)
            if row.checkpoint in shares and row.context == 512
        ]
        recoveries = {i: 0.1 * i for i in shares}
        return recall_correlations(report.tensor, rows, recoveries)[0].rho

    assert rho(0.1 + 0.2, 0.3, 0.1, 0.4, 0.5, 0.6, 0.7, 0.2) == rho(0.3, 0.3, 0.1, 0.4, 0.5, 0.6, 0.7, 0.2)
