"""The intervals hold what they promise: a reduced grid here, all of it in reports/published."""

import csv
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from evalsuite.reports.coverage import (
    GATES,
    GRID,
    Case,
    Coverage,
    GateCase,
    Tally,
    _row,
    main,
    simulate,
    simulate_gate,
)
from evalsuite.reports.dice import answers, contested, pattern_chances

PUBLISHED = Path(__file__).parents[2] / "reports" / "published" / "statistics"


def test_the_dice_have_the_truth_that_they_state() -> None:
    rng = np.random.default_rng(0)
    stratum = answers(rng, 100_000, (0.6, 0.54, 0.3), 0.5)
    assert stratum.means() == pytest.approx([0.6, 0.54, 0.3], abs=0.006)
    independent = answers(rng, 100_000, (0.6, 0.5), 0.0)
    assert contested(independent) / 100_000 == pytest.approx(0.6 * 0.5 + 0.4 * 0.5, abs=0.006)
    assert contested(answers(rng, 100_000, (0.6, 0.6), 0.9)) / 100_000 == pytest.approx(0.137, abs=0.006)
    assert pattern_chances((0.6, 0.54, 0.3), 0.5).sum() == pytest.approx(1)
    for truths, correlation in (((0.9, 0.81), 0.9), ((0.9, 0.8982), 0.999)):
        chances = pattern_chances(truths, correlation)
        marginals = chances[1] + chances[3], chances[2] + chances[3]
        assert marginals == pytest.approx(truths, abs=1e-6)
    with pytest.raises(ValueError, match="1 excluded"):
        pattern_chances((0.5,), 1.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [Case(200, 0.9, 1.0, 0.9), Case(200, 0.6, 0.9, 0.5), Case(1000, 0.3, 0.9, 0.9)],
    ids=lambda case: f"{case.documents}-{case.accuracy}-{case.correlation}",
)
def test_intervals_cover_the_truth(case: Case) -> None:
    for row in simulate(case, 400):
        # Three standard errors of 400 simulations about the promise of 93 to 97 %.
        if row.coverage is not None:
            assert row.coverage >= 0.93 - 0.038, row
            assert row.coverage <= 0.97 + 0.026 or row.few > 0, row
        assert row.narrowest is None or row.narrowest > 0, row


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["recovery", "gap"])
def test_the_gate_keeps_its_promises(metric: Literal["recovery", "gap"]) -> None:
    alarms, power = simulate_gate(GateCase(metric, 3, 300, 0.7), 200)
    assert alarms.failed <= 0.05 + 0.03, alarms
    assert 0.80 - 0.12 <= power.failed <= 0.80 + 0.12, power


def test_the_command_writes_its_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalsuite.reports.coverage.GRID", (Case(200, 0.6, 0.9, 0.5),))
    gates = (GateCase("recovery", 2, 200, 0.7), GateCase("gap", 1, 200, 0.7))
    monkeypatch.setattr("evalsuite.reports.coverage.GATES", gates)
    assert main(["--out", str(tmp_path), "--simulations", "4"]) in (0, 65)
    rows = list(csv.DictReader((tmp_path / "coverage.csv").open()))
    assert {row["quantity"] for row in rows} == {
        "difference",
        "recovery",
        "centred recovery",
        "average of three",
        "gap",
    }
    written = list(csv.DictReader((tmp_path / "gate.csv").open()))
    assert [(row["what"], row["metric"]) for row in written] == [
        ("false alarms", "recovery"),
        ("power", "recovery"),
        ("false alarms", "gap"),
        ("power", "gap"),
    ]
    assert "of 9 rows hold" in (tmp_path / "summary.md").read_text()


def test_an_interrupted_run_goes_on_to_the_same_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "evalsuite.reports.coverage.GRID", (Case(200, 0.6, 0.9, 0.5), Case(200, 0.3, 1.0, 0.0))
    )
    monkeypatch.setattr("evalsuite.reports.coverage.GATES", (GateCase("recovery", 1, 200, 0.7),))
    whole, half = tmp_path / "whole", tmp_path / "half"
    for out in (whole, half):
        main(["--out", str(out), "--simulations", "3"])
    rows = (half / "coverage.csv").read_text().splitlines(True)
    (half / "coverage.csv").write_text("".join(rows[:6]))
    (half / "gate.csv").unlink()
    thrown: list[Case] = []

    def count(case: Case, simulations: int) -> list[Coverage]:
        thrown.append(case)
        return simulate(case, simulations)

    monkeypatch.setattr("evalsuite.reports.coverage.simulate", count)
    main(["--out", str(half), "--simulations", "3"])
    assert thrown == [Case(200, 0.3, 1.0, 0.0)]
    for name in ("coverage.csv", "gate.csv", "summary.md"):
        assert (half / name).read_text() == (whole / name).read_text()


def test_a_row_holds_only_where_it_keeps_its_promise() -> None:
    def row(inside: int, few: int, narrowest: float = 0.1, defined: int = 1000) -> Coverage:
        tally = Tally(defined=defined, inside=inside, few=few, narrowest=narrowest)
        return _row("recovery", Case(200, 0.9, 0.9, 0.5), tally, 1000)

    assert row(950, 0).holds
    assert row(929, 0).holds is False
    assert row(980, 0).holds is False
    assert row(980, 100).holds is False
    assert row(980, 900).holds
    assert row(950, 0, narrowest=0.0).holds is False
    assert (row(400, 0, defined=400).holds, row(400, 0, defined=400).coverage) == (None, None)


def test_what_is_published_holds() -> None:
    rows = list(csv.DictReader((PUBLISHED / "coverage.csv").open()))
    asked = {(c.documents, c.accuracy, c.kept, c.correlation) for c in GRID}
    names = ("documents", "accuracy", "kept", "correlation")
    assert {tuple(float(row[name]) for name in names) for row in rows} == asked
    assert len(rows) == 5 * len(GRID)
    undefined = [row for row in rows if not row["coverage"]]
    assert {row["quantity"] for row in undefined} == {"centred recovery"}
    assert {(row["documents"], row["accuracy"]) for row in undefined} == {("200", "0.3")}
    gates = list(csv.DictReader((PUBLISHED / "gate.csv").open()))
    assert len(gates) == 2 * len(GATES)
    for row in (*rows, *gates):
        assert row["simulations"] == "4000"
        assert row["holds"] == ("" if row in undefined else "True"), row
    known = [row for row in rows if row["coverage"]]
    assert min(float(row["coverage"]) for row in known) >= 0.93
    assert all(float(row["coverage"]) <= 0.97 or float(row["few"]) >= 0.5 for row in known)
    alarms = [float(row["failed"]) for row in gates if row["what"] == "false alarms"]
    powers = [float(row["failed"]) for row in gates if row["what"] == "power"]
    assert len(alarms) == len(powers) == len(GATES)
    assert max(alarms) <= 0.05
    assert all(0.75 <= power <= 0.85 for power in powers)
