"""Our scores in the columns of the papers' tables, in the units that are printed there."""

import csv
from pathlib import Path

import pytest

from evalsuite.foundation import DataError
from evalsuite.reports import compare
from evalsuite.reports.blocks import chip
from evalsuite.reports.measures.papers.tables import DROPS, paper_tables
from evalsuite.reports.references.papers import TABLE_MEANS, paper_scores
from evalsuite.reports.references.printed import read_printed
from evalsuite.reports.report import Report, build_report
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run

CONTEXTS = (512, 1024, 2048, 4096)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    needles = [
        SyntheticBenchmark(f"niah_single_{i}", f"S-NIAH-{i}", "recall", 40, 0.0, CONTEXTS, ("generation",))
        for i in (1, 2, 3)
    ]
    fda = SyntheticBenchmark("fda", "FDA", "recall", 40, 0.0, (), ("generation",))
    checkpoints = {"teacher": 0.9, "student": 0.6}
    run: Path = make_run(tmp_path_factory.mktemp("run"), [*needles, fda], checkpoints)
    return build_report([run])


def rows_of(report: Report, title: str) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """The columns of a table, and our rows by label."""
    table = next(table.texts.values for table in paper_tables(report) if title in table.label)
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


TASKS = ("lambada_openai", "winogrande", "arc_easy", "arc_challenge", "piqa", "hellaswag", "bear")


@pytest.mark.parametrize("tasks", [TASKS, TASKS[:3]])
def test_means_and_recovery_are_those_that_the_paper_prints(tmp_path: Path, tasks: tuple[str, ...]) -> None:
    benchmarks = [
        SyntheticBenchmark(name, name, "knowledge", 40, 0.0, (), ("loglikelihood",)) for name in tasks
    ]
    report = build_report([make_run(tmp_path, benchmarks, {"teacher": 0.9, "student": 0.6})])
    (table,) = (each for each in paper_tables(report) if "2504.14366, Table 5," in each.label)
    part = "" if tasks == TASKS else " of these 3"
    mean, recovery = f"AVG.{part}", f"RECOV.{part}"
    assert table.columns[-2:] == (mean, recovery)
    rows = {line.model: dict(zip(table.columns, table.values(line), strict=True)) for line in table.lines}
    ours = {
        name: [100 * r.score.point for r in report.scores if r.checkpoint == i]
        for i, name in enumerate(rows)
        if i < 2
    }
    for name, scores in ours.items():
        assert rows[name][mean] == pytest.approx(sum(scores) / len(tasks))
        assert rows[name][recovery] == pytest.approx(100 * sum(scores) / sum(ours["teacher"]))
    printed = [
        each for each in paper_scores() if (each.source, each.table) == ("linearizing_2025", "Table 5")
    ]
    compared = 0
    for each in printed:
        if tasks == TASKS and each.benchmark in TABLE_MEANS:
            line = next(name for name in rows if name in (each.model, f"{each.model}, {each.scale}"))
            assert rows[line][each.benchmark] == pytest.approx(each.value, abs=0.06), (
                each.model,
                each.benchmark,
            )
            compared += 1
    assert compared == (48 if tasks == TASKS else 0)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two benchmarks of GenDistill's Table 1 under both protocols, and a third one."""
    names = {"arc_easy": "ARC-Easy", "hellaswag": "HellaSwag", "mine": "Mine"}
    benchmarks = [SyntheticBenchmark(name, title, "knowledge", 60) for name, title in names.items()]
    checkpoints = [
        SyntheticCheckpoint("teacher", lambda b, p, c: 0.9, "teacher"),
        SyntheticCheckpoint("student", lambda b, p, c: 0.8 if p == "loglikelihood" else 0.5),
    ]
    run: Path = make_run(tmp_path_factory.mktemp("both"), benchmarks, checkpoints)
    return run


def test_both_protocols_stand_in_one_table_with_drops_and_gap(both: Path) -> None:
    report = build_report([both])
    (table,) = (each for each in paper_tables(report) if "2603.26556, Table 1," in each.label)
    assert table.label.endswith("log-likelihood and generation")
    assert table.columns[-3:] == DROPS
    cells = {line.model: dict(zip(table.columns, table.cells(line), strict=True)) for line in table.lines}
    assert [(line.model, line.origin) for line in table.lines][:2] == [
        ("teacher", "ours"),
        ("student", "ours"),
    ]
    # Printed: 81.5 and 80.5 against 81.4 and 79.0; 91.9 and 82.3 against 75.2 and 49.9.
    printed = [cells["QRWKV6-7B-Instruct"][name] for name in DROPS]
    assert [float(text) for text in printed] == pytest.approx([0.8, 24.55, 23.75], abs=0.051)
    scores = {(row.checkpoint, row.protocol, row.benchmark): row.score.point for row in report.scores}
    drops = [
        50 * sum(scores[0, protocol, name] - scores[1, protocol, name] for name in ("arc_easy", "hellaswag"))
        for protocol in ("loglikelihood", "generation")
    ]
    ours = [float(cells["student"][name]) for name in DROPS]
    assert ours == pytest.approx([*drops, drops[1] - drops[0]], abs=0.051)
    assert {cells[name]["gap"] for name in ("teacher", "Qwen2.5-7B-Instruct")} == {"–"}


HEADER = "model,role,protocol,benchmark,value\n"


def test_scores_from_elsewhere_are_a_table_with_ours(both: Path, tmp_path: Path) -> None:
    lines = [
        f"{model},{role},{protocol},{benchmark},{value}"
        for model, role, values in (("Big", "teacher", (80, 90)), ("Small", "student", (79, 60)))
        for protocol, value in zip(("loglikelihood", "generation"), values, strict=True)
        for benchmark in ("mine", "ARC-E")
    ]
    file = tmp_path / "elsewhere.csv"
    file.write_text(HEADER + "\n".join(lines))
    compare([both], tmp_path / "report", printed=file)
    with open(tmp_path / "report" / "papers" / "elsewhere_csv.csv", newline="") as written:
        rows = {row["model"]: row for row in csv.DictReader(written)}
    assert {name: row["origin"] for name, row in rows.items()} == {
        **dict.fromkeys(("teacher", "student"), "ours"),
        **dict.fromkeys(("Big", "Small"), "printed"),
    }
    assert [float(rows["Small"][name]) for name in DROPS] == [1, 30, 29]
    assert rows["Big"]["gap"] == ""
    assert "elsewhere.csv, log-likelihood and generation" in (tmp_path / "report" / "index.html").read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Big,teacher,generation,min,1", "line 2: 'benchmark' = 'min': no benchmark .*; did you mean 'mine'"),
        ("Big,teacher,written,mine,1", "line 2: .*protocol"),
        ("Big,teacher,generation,mine,", "line 2: .*value"),
        ("Big,teacher,generation,mine,1\n" * 2, "line 3: Big has two printed scores of mine .generation"),
        ("", "no printed scores"),
    ],
)
def test_wrong_scores_from_elsewhere_are_refused_by_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "elsewhere.csv").write_text(HEADER + text)
    with pytest.raises(DataError, match=message):
        read_printed(tmp_path / "elsewhere.csv", {"mine"})
