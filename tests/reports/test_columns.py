"""Columns of the leaderboard: one declaration serves CSV, Markdown and terminal."""

import csv
import dataclasses
import io

import pytest

from evalsuite.reports.analysis.bootstrap_sample import Estimate
from evalsuite.reports.exports.markdown import report_markdown
from evalsuite.reports.exports.terminal import leaderboard_text
from evalsuite.reports.measure import MEASURES, Measure
from evalsuite.reports.measures.agreement import agreement_of, agreement_with_teacher, agreements
from evalsuite.reports.measures.leaderboard import COLUMNS, Entry, columns_of, leaderboard
from evalsuite.reports.measures.scores import SCORES
from evalsuite.reports.report import Report
from evalsuite.reports.statistics.intervals import Interval
from evalsuite.reports.table import Column

ALL = [*COLUMNS, *(column for measure in MEASURES.values() for column in measure.columns)]
OLD = [
    "label",
    "weights_id",
    "role",
    "teacher",
    "protocol",
    "scope",
    "rank",
    "rank_low",
    "rank_high",
    "recovery",
    "recovery_low",
    "recovery_high",
    "recovery_undefined",
    "chance_normalized_recovery",
    "chance_normalized_recovery_low",
    "chance_normalized_recovery_high",
    "chance_normalized_recovery_undefined",
    "score",
    "score_low",
    "score_high",
    "drop",
    "drop_low",
    "drop_high",
    "win_or_tie_rate",
    "benchmarks",
    "missing",
    "documents",
]


def rows_of(text: str) -> list[dict[str, str]]:
    """The rows of a CSV."""
    return list(csv.DictReader(io.StringIO(text)))


def test_a_column_is_the_field_that_it_names(report: Report) -> None:
    average = report.average(2, "loglikelihood")
    assert average is not None
    entry = Entry.of(report, dataclasses.replace(average, rank=3, rank_low=1, rank_high=4))
    named = []
    for column in ALL:
        for part in (entry.average, agreement_of(report, entry)):
            if hasattr(part, column.name):
                field = getattr(part, column.name)
                expected = " ".join(field) if isinstance(field, tuple) else field
                assert column.of(report, entry) == expected, column.name
                named.append(column.name)
                break
    assert {"rank", "rank_low", "rank_high", "drop", "retained", "lost", "gained", "kappa"} <= {*named}


def test_one_declaration_reaches_every_output(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    column: Column[Entry] = Column(
        "forgotten",
        title="right answers lost",
        hint="1 − retained.",
        value=lambda report, entry: (
            None if (row := agreement_of(report, entry)) is None else 1 - (row.retained.point or 0.0)
        ),
        unit="percent",
        better="lower",
    )
    monkeypatch.setitem(MEASURES._items, "forgotten", Measure(columns=(column,)))
    report = dataclasses.replace(report)  # nothing is computed yet
    row = agreement_with_teacher(report, 2, "loglikelihood")
    percent = f"{100 * (1 - row.retained.point):.1f}"
    found = next(
        each
        for each in rows_of(leaderboard(report)[0].csv(report))
        if (each["label"], each["protocol"], each["scope"]) == ("weak", "loglikelihood", "all")
    )
    assert float(found["forgotten"]) == pytest.approx(1 - row.retained.point)
    for text in (report_markdown(report), leaderboard_text(report)):
        assert "right answers lost %" in text
        assert percent in next(line for line in text.splitlines() if "weak" in line and percent in line)
    assert columns_of(report, "page")["forgotten"].sort_key(
        report, Entry.of(report, report.average(2, "loglikelihood"))
    )


@pytest.mark.parametrize("name", ["agreement", "retained"])
def test_tables_of_one_row_have_one_set_of_benchmarks(report: Report, name: str) -> None:
    average = report.average(2, "loglikelihood")
    row, every = (
        agreement_with_teacher(report, 2, "loglikelihood", scope) for scope in ("informative", "all")
    )
    kept = [each for each in report.of(agreements).by_scope if each is not every]
    other = dataclasses.replace(every, **{name: Estimate(Interval(0.123, 0.1, 0.2))})
    changed = report.having(agreements, dataclasses.replace(report.of(agreements), by_scope=(*kept, other)))
    column = changed.of(leaderboard)[0].column(name)
    assert column.of(changed, Entry.of(changed, average)) == getattr(other, name)
    assert column.of(changed, Entry.leading_of(changed, average)) == getattr(row, name)
    text = f"{100 * getattr(row, name).point:.1f}"
    for table in (report_markdown(changed), leaderboard_text(changed)):
        assert text in next(line for line in table.splitlines() if "weak" in line)
        assert "12.3" not in table


def test_csv_keeps_the_names_and_order_of_its_columns(report: Report) -> None:
    rows = rows_of(report.of(leaderboard)[0].csv(report))
    assert list(rows[0])[: len(OLD)] == OLD
    assert {row["scope"] for row in rows} >= {"all", "informative", "knowledge"}
    assert set(rows[0]) == {name for row in rows for name in row}
    for row, average in zip(rows, report.averages, strict=True):
        assert row["recovery"] == ("" if average.recovery.point is None else str(average.recovery.point))
        assert row["drop_high"] == ("" if average.drop is None else str(average.drop.high))
        assert row["agreement_low"] == (
            ""
            if (r := agreement_with_teacher(report, average.checkpoint, average.protocol, average.scope))
            is None
            or r.agreement.interval is None
            else str(r.agreement.interval.low)
        )


def test_scores_csv_has_flips_letters_and_what_is_informative(report: Report) -> None:
    rows = {
        (row["label"], row["benchmark"], row["protocol"], row["context"]): row
        for row in rows_of(SCORES.csv(report))
    }
    row = rows["weak", "piqa", "generation", ""]
    (flips,) = (
        r
        for r in report.of(agreements).by_benchmark
        if (r.checkpoint, r.scope, r.protocol) == (2, "piqa", "generation")
    )
    assert float(row["retained"]) == flips.retained.point
    assert float(row["agreement_high"]) == flips.agreement.interval.high
    assert row["informative"] == "1"
    assert row["letters"].startswith("a:")
    assert 0 < float(row["accuracy_among_named"]) < 1
    assert rows["weak", "wikitext", "loglikelihood", ""]["retained"] == ""
    assert rows["weak", "piqa", "loglikelihood", ""]["letters"] == ""


@pytest.mark.parametrize("column", ALL, ids=lambda column: column.name)
def test_every_column_states_what_it_returns(report: Report, column: Column[Entry]) -> None:
    assert column.hint.endswith(".") or column.outputs == ("csv",)
    shapes = set()
    for average in report.averages:
        entry = Entry.of(report, average)
        shapes.add(tuple(column.csv(report, entry)) if "csv" in column.outputs else ())
        assert column.text(report, entry)
        key = column.sort_key(report, entry)
        assert key is None or isinstance(key, float)
    assert len(shapes) == 1
