"""Declared tables: one declaration reaches every output, and what is wrong is refused by name."""

import csv
import io
import json
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from evalsuite.api import load_run
from evalsuite.foundation import ConfigError
from evalsuite.reports import compare
from evalsuite.reports.analysis.bootstrap_sample import Estimate
from evalsuite.reports.exports.report_json import report_json
from evalsuite.reports.formatting import signed
from evalsuite.reports.measure import MEASURES, Measure
from evalsuite.reports.measures.gap import GAP, gap_view
from evalsuite.reports.measures.pairs import PAIRS
from evalsuite.reports.page.tables import head
from evalsuite.reports.report import Report
from evalsuite.reports.statistics.intervals import Interval
from evalsuite.reports.table import Column, Table, csv_text


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
    written = pd.read_csv(folder / "pairs.csv", float_precision="round_trip")
    frame = load_run(small_run).table("pairs")
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


def test_every_column_is_the_field_that_it_names(report: Report) -> None:
    named = set()
    for measure in (MEASURES[name] for name in MEASURES if name != "leaderboard"):
        for table in measure.tables:
            for row, column in product(table.rows(report), table.columns):
                field = getattr(row, column.name, None)
                kinds = str if column.unit == "text" else int | float | Interval | Estimate
                if isinstance(field, kinds):
                    assert column.of(report, row) == field, (table.name, column.name)
                    named.add((table.name, column.name))
    assert named >= {("gap", "drop_generation"), ("gap", "drop_loglikelihood"), ("pairs", "difference")}


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1"])
def test_a_csv_holds_no_formula(report: Report, text: str) -> None:
    columns: tuple[Column[Any], ...] = (Column("label", unit="text"),)
    table = Table(name="mine", title="Mine", rows=lambda _: [SimpleNamespace(label=text)], columns=columns)
    assert [*csv.reader(io.StringIO(table.csv(report), newline=""))] == [["label"], [f"'{text}"]]


def test_a_page_sorts_the_best_first() -> None:
    first = [head(Column("kl", better=better)).first for better in ("lower", "higher", None)]
    assert first == ["ascending", "descending", ""]


def test_the_gap_section_opens_at_the_largest_gap(report: Report) -> None:
    view = gap_view(report)
    assert view is not None
    totals = {row.checkpoint: row.gap.point for row in report.gaps if row.benchmark == "all"}
    assert totals[view.chosen] == max(totals.values()) > min(totals.values())
    rows = [row for row in report.gaps if row.checkpoint == view.chosen and row.benchmark != "all"]
    (table,) = (each for each in view.tables if each.checkpoint == view.chosen)
    for row, line in zip(rows, table.lines, strict=True):
        drops = row.drop_loglikelihood.point, row.drop_generation.point
        changes = tuple(signed(-100 * drop) for drop in drops)
        assert (line.drop_loglikelihood, line.drop_generation) == changes
        columns = (GAP.column(f"drop_{protocol}") for protocol in ("loglikelihood", "generation"))
        assert tuple(column.text(report, row) for column in columns) == changes


def test_the_map_of_pairs_is_read_row_minus_column(report: Report) -> None:
    row = next(row for row in report.pairs if row.wins != row.losses)
    figure = PAIRS.figures(report)[report.protocols.index(row.protocol)]
    trace = json.loads(figure.data)["data"][0]
    first, second = (report.checkpoints[i].label for i in (row.first, row.second))
    ties = row.documents - row.wins - row.losses
    for one, other, sign, counts in (
        (first, second, 1, [row.wins, row.losses, ties]),
        (second, first, -1, [row.losses, row.wins, ties]),
    ):
        i, j = trace["y"].index(one), trace["x"].index(other)
        assert trace["z"][i][j] == pytest.approx(sign * 100 * row.difference.point, abs=0.01)
        assert trace["customdata"][i][j][-3:] == counts


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
        "twice": Measure(
            tables=(Table(name="pairs", columns=(), **rows),),
            columns=(Column("recovery", value=lambda report, entry: 0.0),),
        ),
        "lists": Measure(json={"torn": lambda report: [1 / 0], "raw": lambda report: [{1}]}),
        "objects": Measure(tables=(Table(name="objects", title="O", rows=lambda _: [{1}], columns=()),)),
    }
    monkeypatch.setattr(MEASURES, "_items", {**MEASURES._items, **measures})
    origin = MEASURES.origin
    monkeypatch.setattr(MEASURES, "origin", lambda name: "other 1.0" if name in measures else origin(name))
    made = compare([small_run], tmp_path)
    assert set(made.report.warnings) >= {
        "table 'mine' of other 1.0 is left out: KeyError: 'no such part'",
        "table 'pairs' of other 1.0 is left out: another measure has one",
        "leaderboard column 'broken' of other 1.0 is left out: KeyError: 'no such part'",
        "leaderboard column 'recovery' of other 1.0 is left out: ValueError: table 'leaderboard' has two "
        "columns 'recovery'",
        "list 'torn' of other 1.0 is left out: ZeroDivisionError: division by zero",
        "table 'objects' of other 1.0 is left out: TypeError: Object of type set is not JSON serializable",
    }
    assert any(each.startswith("list 'raw' of other 1.0 is left out: ") for each in made.report.warnings)
    assert not {"torn", "raw"} & {*json.loads((tmp_path / "report.json").read_text())}
    assert {path.name for path in made.files} >= {"pairs.csv", "leaderboard.csv"}
    assert not (tmp_path / "mine.csv").exists()
    assert 'id="pairs"' in made.page.read_text()


@pytest.mark.parametrize("text", ["a\rb", "a\nb", "a\r\nb", 'a"b', "a,b", ""])
def test_a_csv_has_one_line_a_row_whatever_is_in_a_cell(text: str) -> None:
    rows = [{"name": text, "value": 1}, {"name": "other", "value": 2}]
    found = csv_text(rows)
    assert list(csv.DictReader(io.StringIO(found, newline=""))) == [
        {key: str(value) for key, value in row.items()} for row in rows
    ]
    assert pd.read_csv(io.StringIO(found), keep_default_na=False)["name"].tolist() == [text, "other"]
    assert csv_text(rows[1:]) == "name,value\nother,2\n"
