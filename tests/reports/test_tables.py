"""Declared tables: one declaration reaches every output, and what is wrong is refused by name."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from evalsuite.api import load_run
from evalsuite.foundation import ConfigError
from evalsuite.reports import compare
from evalsuite.reports.exports.report_json import report_json
from evalsuite.reports.measure import MEASURES, Measure
from evalsuite.reports.measures.pairs import PAIRS
from evalsuite.reports.report import Report, build_report
from evalsuite.reports.table import Column, Table


@pytest.fixture(scope="module")
def report(small_run: Path) -> Report:
    return build_report([small_run])


def test_a_column_that_is_declared_twice_is_refused() -> None:
    columns: tuple[Column[Any], ...] = (Column("kl", kind="interval"), Column("kl_low"))
    with pytest.raises(ValueError, match="table 'mine' has two columns 'kl_low'"):
        Table(name="mine", title="Mine", rows=lambda report: [], columns=columns)


@pytest.mark.parametrize("name", ["", "../mine", "my table"])
def test_a_name_that_is_no_file_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"table '{name}': the name of a file"):
        Table(name=name, title="Mine", rows=lambda report: [], columns=())


def test_a_table_takes_no_other_entry_of_the_json(report: Report) -> None:
    columns: tuple[Column[Any], ...] = (Column("documents"),)
    table = Table(name="runs", title="Mine", rows=lambda report: report.pairs, columns=columns)
    plain, values = report_json(report, []), report_json(report, [table])
    assert {name: values[name] for name in plain} == plain
    assert len(values["runs_table"]) == len(report.pairs)


def test_a_value_of_another_kind_is_refused(report: Report) -> None:
    column: Column[Any] = Column("documents", kind="interval")
    with pytest.raises(TypeError, match="column 'documents' is of kind 'interval'"):
        column.csv(report, report.pairs[0])


def test_pairs_reach_every_output(small_run: Path, report: Report, tmp_path: Path) -> None:
    folder = compare([small_run], tmp_path).folder
    written, frame = pd.read_csv(folder / "pairs.csv"), load_run(small_run).table("pairs")
    assert list(written) == list(frame)
    assert len(written) == len(frame) == len(report.pairs)
    page = (folder / "index.html").read_text()
    for row, (_, cells) in zip(report.pairs, written.iterrows(), strict=True):
        assert cells["first"] == report.checkpoints[row.first].label
        assert cells["difference_high"] == row.difference.high
        assert (cells["wins"], cells["losses"], cells["p_holm"]) == (row.wins, row.losses, row.p_holm)
        assert cells["mde"] == row.mde
        shown = {column.name: column.text(report, row) for column in PAIRS.columns_of("page")}
        assert shown["mde"] == f"{100 * row.mde:.1f}"
        assert f'<td class="r">{shown["wins : losses"]}</td>' in page
        assert f'<td class="r">{shown["mde"]}</td></tr>' in page
    assert len(json.loads((folder / "report.json").read_text())["pairs"]) == len(report.pairs)
    assert "pairs.csv" in page.rpartition("<footer>")[2]


def test_a_table_that_is_unknown_is_refused(small_run: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown table 'pair'.*pairs"):
        load_run(small_run).table("pair")


def _fail(report: Report, row: Any) -> float:
    raise KeyError("no such part")


def test_what_a_package_breaks_is_left_out_by_name(
    small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad: Column[Any] = Column("broken", value=_fail)
    rows = {"rows": lambda report: report.averages, "title": "Mine", "order": 21}
    measures = {
        "mine": Measure(tables=(Table(name="mine", columns=(bad,), **rows),), columns=(bad,)),
        "twice": Measure(tables=(Table(name="pairs", columns=(), **rows),)),
    }
    monkeypatch.setattr(MEASURES, "_items", {**MEASURES._items, **measures})
    origin = MEASURES.origin
    monkeypatch.setattr(MEASURES, "origin", lambda name: "other 1.0" if name in measures else origin(name))
    made = compare([small_run], tmp_path)
    assert set(made.report.warnings) >= {
        "table 'mine' of other 1.0 is left out: KeyError: 'no such part'",
        "table 'pairs' of other 1.0 is left out: another measure has one",
        "leaderboard column 'broken' of other 1.0 is left out: KeyError: 'no such part'",
    }
    assert {path.name for path in made.files} >= {"pairs.csv", "leaderboard.csv"}
    assert not (tmp_path / "mine.csv").exists()
    assert 'id="pairs"' in made.page.read_text()
