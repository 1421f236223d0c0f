"""The intervals hold what they promise: a reduced grid here, all of it in reports/published."""

import csv
from pathlib import Path

import numpy as np
import pytest

from evalsuite.reports.coverage import (
    GRID,
    Case,
    answers,
    contested,
    main,
    pattern_chances,
    simulate,
    simulate_gate,
)

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
def test_the_gate_keeps_its_promises() -> None:
    alarms, power = simulate_gate(3, 300, 200)
    assert alarms.failed <= 0.05 + 0.03, alarms
    assert 0.80 - 0.12 <= power.failed <= 0.80 + 0.12, power


def test_the_command_writes_its_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalsuite.reports.coverage.GRID", (Case(200, 0.6, 0.9, 0.5),))
    assert main(["--out", str(tmp_path), "--simulations", "4"]) in (0, 65)
    rows = list(csv.DictReader((tmp_path / "coverage.csv").open()))
    assert {row["quantity"] for row in rows} == {
        "difference",
        "recovery",
        "centred recovery",
        "average of three",
        "gap",
    }
    assert len(list(csv.DictReader((tmp_path / "gate.csv").open()))) == 6


def test_what_is_published_holds() -> None:
    rows = list(csv.DictReader((PUBLISHED / "coverage.csv").open()))
    asked = {(c.documents, c.accuracy, c.kept, c.correlation) for c in GRID}
    names = ("documents", "accuracy", "kept", "correlation")
    assert {tuple(float(row[name]) for name in names) for row in rows} == asked
    assert len(rows) == 5 * len(GRID)
    gates = list(csv.DictReader((PUBLISHED / "gate.csv").open()))
    assert len(gates) == 6
    for row in (*rows, *gates):
        assert row["holds"] == "True", row
        assert row["simulations"] == "4000"
    known = [float(row["coverage"]) for row in rows if row["coverage"]]
    assert min(known) >= 0.93
    assert max(known) <= 0.97
