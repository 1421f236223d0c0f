"""Our scores in the columns of the papers' tables, in the units that are printed there."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from evalsuite.reports.blocks import chip
from evalsuite.reports.measures.papers.tables import paper_tables
from evalsuite.reports.report import Report, build_report

CONTEXTS = (512, 1024, 2048, 4096)


@pytest.fixture(scope="module")
def report(synthetic: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Report:
    needles = [
        synthetic.SyntheticBenchmark(
            f"niah_single_{i}", f"S-NIAH-{i}", "recall", 40, 0.0, CONTEXTS, ("generation",)
        )
        for i in (1, 2, 3)
    ]
    fda = synthetic.SyntheticBenchmark("fda", "FDA", "recall", 40, 0.0, (), ("generation",))
    checkpoints = [
        synthetic.SyntheticCheckpoint("teacher", lambda b, p, c: 0.9, "teacher"),
        synthetic.SyntheticCheckpoint("student", lambda b, p, c: 0.6),
    ]
    run: Path = synthetic.make_run(tmp_path_factory.mktemp("run"), [*needles, fda], checkpoints)
    return build_report([run])


def rows_of(report: Report, title: str) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """The columns of a table, and our rows by label."""
    table = next(table.values for table in paper_tables(report) if title in table.label)
    ours = {name: scores for name, *scores in table.rows if ">ours" in name}
    assert [*ours] == [chip("teacher", "ours, teacher"), chip("student", "ours")]
    assert [*ours] == [name for name, *_ in table.rows[:2]]
    return table.columns[1:], dict(zip(("teacher", "student"), map(tuple, ours.values()), strict=True))


def test_percentages_by_context(report: Report) -> None:
    columns, rows = rows_of(report, "arXiv 2504.14366, Table 3")
    assert columns[:4] == ("S-NIAH-1 512", "S-NIAH-1 1k", "S-NIAH-1 2k", "S-NIAH-1 4k")
    scores = {(r.checkpoint, r.benchmark, r.context): r.score.point for r in report.scores}
    for i, label in enumerate(("teacher", "student")):
        wanted = [100 * scores[i, f"niah_single_{n}", at] for n in (1, 2, 3) for at in CONTEXTS]
        assert [float(text) for text in rows[label]] == pytest.approx(wanted, abs=0.051)


def test_means_are_over_benchmarks_and_contexts(report: Report) -> None:
    columns, rows = rows_of(report, "arXiv 2504.14366, Table 4")
    scores = [
        r.score.point for r in report.scores if r.checkpoint == 1 and r.benchmark.startswith("niah_single")
    ]
    mean = 100 * sum(scores) / len(scores)
    assert float(rows["student"][columns.index("NIAH-S AVG")]) == pytest.approx(mean, abs=0.051)


def test_fractions_where_the_paper_prints_fractions(report: Report) -> None:
    columns, rows = rows_of(report, "ICLR 2026, Table 5")
    (point,) = (r.score.point for r in report.scores if (r.checkpoint, r.benchmark) == (1, "fda"))
    assert rows["student"][columns.index("FDA")] == f"{point:.4f}"
