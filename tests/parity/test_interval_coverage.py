"""Interval coverage on a reduced grid; the full grid is in reports/results."""

import csv
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from tests.parity.interval_coverage import (
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
from tests.parity.simulation import count_discordant, draw_scores, pattern_probabilities

RESULTS = Path(__file__).parents[2] / "reports" / "results" / "statistics"


def test_simulated_scores_have_the_stated_truth() -> None:
    rng = np.random.default_rng(0)
    stratum = draw_scores(rng, 100_000, (0.6, 0.54, 0.3), 0.5)
    assert stratum.means() == pytest.approx([0.6, 0.54, 0.3], abs=0.006)
    independent = draw_scores(rng, 100_000, (0.6, 0.5), 0.0)
    assert count_discordant(independent) / 100_000 == pytest.approx(0.6 * 0.5 + 0.4 * 0.5, abs=0.006)
    assert count_discordant(draw_scores(rng, 100_000, (0.6, 0.6), 0.9)) / 100_000 == pytest.approx(
        0.137, abs=0.006
    )
    assert pattern_probabilities((0.6, 0.54, 0.3), 0.5).sum() == pytest.approx(1)
    for truths, correlation in (((0.9, 0.81), 0.9), ((0.9, 0.8982), 0.999)):
        chances = pattern_probabilities(truths, correlation)
        marginals = chances[1] + chances[3], chances[2] + chances[3]
        assert marginals == pytest.approx(truths, abs=1e-6)
    with pytest.raises(ValueError, match="1 excluded"):
        pattern_probabilities((0.5,), 1.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [Case(200, 0.9, 1.0, 0.9), Case(200, 0.6, 0.9, 0.5), Case(1000, 0.3, 0.9, 0.9)],
    ids=lambda case: f"{case.documents}-{case.accuracy}-{case.correlation}",
)
def test_intervals_cover_the_truth(case: Case) -> None:
    for row in simulate(case, 400):
        # Three standard errors of 400 simulations around the range of 93 to 97 %.
        if row.coverage is not None:
            assert row.coverage >= 0.93 - 0.038, row
            assert row.coverage <= 0.97 + 0.026 or row.few > 0, row
        assert row.narrowest is None or row.narrowest > 0, row


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["recovery", "gap"])
def test_error_rates_of_the_gate(metric: Literal["recovery", "gap"]) -> None:
    alarms, power = simulate_gate(GateCase(metric, 3, 300, 0.7), 200)
    assert alarms.failed <= 0.05 + 0.03, alarms
    assert 0.80 - 0.12 <= power.failed <= 0.80 + 0.12, power


def test_command_writes_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.parity.interval_coverage.GRID", (Case(200, 0.6, 0.9, 0.5),))
    gates = (GateCase("recovery", 2, 200, 0.7), GateCase("gap", 1, 200, 0.7))
    monkeypatch.setattr("tests.parity.interval_coverage.GATES", gates)
    assert main(["--out", str(tmp_path), "--simulations", "4"]) in (0, 1)
    rows = list(csv.DictReader((tmp_path / "coverage.csv").open()))
    assert {row["quantity"] for row in rows} == {
        "difference",
        "recovery",
        "chance-normalized recovery",
        "average of three",
        "gap",
    }
    gate_rows = list(csv.DictReader((tmp_path / "gate.csv").open()))
    assert [(row["what"], row["metric"]) for row in gate_rows] == [
        ("false alarms", "recovery"),
        ("power", "recovery"),
        ("false alarms", "gap"),
        ("power", "gap"),
    ]
    assert "of 9 rows hold" in (tmp_path / "summary.md").read_text()


def test_interrupted_run_resumes_to_the_same_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tests.parity.interval_coverage.GRID", (Case(200, 0.6, 0.9, 0.5), Case(200, 0.3, 1.0, 0.0))
    )
    monkeypatch.setattr("tests.parity.interval_coverage.GATES", (GateCase("recovery", 1, 200, 0.7),))
    whole, half = tmp_path / "whole", tmp_path / "half"
    for out in (whole, half):
        main(["--out", str(out), "--simulations", "3"])
    rows = (half / "coverage.csv").read_text().splitlines(True)
    (half / "coverage.csv").write_text("".join(rows[:6]))
    (half / "gate.csv").unlink()
    simulated: list[Case] = []

    def count(case: Case, simulations: int) -> list[Coverage]:
        simulated.append(case)
        return simulate(case, simulations)

    monkeypatch.setattr("tests.parity.interval_coverage.simulate", count)
    main(["--out", str(half), "--simulations", "3"])
    assert simulated == [Case(200, 0.3, 1.0, 0.0)]
    for name in ("coverage.csv", "gate.csv", "summary.md"):
        assert (half / name).read_text() == (whole / name).read_text()


def test_holds_requires_coverage_in_range() -> None:
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


def test_stored_results_hold() -> None:
    rows = list(csv.DictReader((RESULTS / "coverage.csv").open()))
    expected = {(c.documents, c.accuracy, c.true_recovery, c.correlation) for c in GRID}
    names = ("documents", "accuracy", "true_recovery", "correlation")
    assert {tuple(float(row[name]) for name in names) for row in rows} == expected
    assert len(rows) == 5 * len(GRID)
    undefined = [row for row in rows if not row["coverage"]]
    assert {row["quantity"] for row in undefined} == {"chance-normalized recovery"}
    assert {(row["documents"], row["accuracy"]) for row in undefined} == {("200", "0.3")}
    gates = list(csv.DictReader((RESULTS / "gate.csv").open()))
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
