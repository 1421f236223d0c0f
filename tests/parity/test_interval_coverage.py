"""Interval coverage in a few settings; all of them are in reports/results."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.parity.interval_coverage import SETTINGS, Row, holds, main, simulate
from tests.parity.simulation import LONGBENCH, Setting, draw, points, truths


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_simulated_scores_have_the_stated_truth(setting: Setting) -> None:
    rng = np.random.default_rng(0)
    wide = replace(setting, sizes=(4440,) * 20)
    teacher, student = truths(setting)
    found = points(wide, rng, 3)
    spread = setting.run_deviation + setting.seed_deviation
    assert np.mean(found) == pytest.approx(teacher - student, abs=0.006 + 2 * spread)


def test_clusters_and_seeds_vary_together() -> None:
    rng = np.random.default_rng(1)
    plain = Setting(name="plain", sizes=(270,))
    clustered = replace(plain, cluster_size=30, icc=0.3)
    seeded = replace(plain, seeds=3, seed_deviation=0.05)
    deviations = [np.std(points(each, rng, 400)) for each in (plain, clustered, seeded)]
    assert deviations[1] > 1.5 * deviations[0]
    assert deviations[2] > 1.2 * deviations[0]
    simulated = draw(replace(plain, runs=3, run_deviation=0.05), rng, 100)
    assert simulated.spread is not None
    assert simulated.spread.degrees == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["clusters 27 × 37, ICC 0.1", "fractions, n 8, 60 % zeros"])
def test_intervals_cover_the_truth(name: str) -> None:
    (setting,) = [each for each in SETTINGS if each.name == name]
    row = simulate(replace(setting, power=False), 200)
    # Three standard errors of 200 simulations.
    assert row.difference >= 0.92 - 0.058
    assert row.false_alarms <= 0.05 + 0.046


def test_command_writes_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.parity.interval_coverage.SETTINGS", SETTINGS[:1])
    assert main(["--out", str(tmp_path), "--simulations", "3"]) in (0, 1)
    (row,) = csv.DictReader((tmp_path / "coverage.csv").open())
    assert row["setting"] == SETTINGS[0].name
    assert "of 1 settings hold" in (tmp_path / "summary.md").read_text()


def test_a_row_holds_only_in_range() -> None:
    setting = Setting(name="x", sizes=LONGBENCH, required=(0.93, 0.97))
    row = Row(
        setting="x",
        simulations=1000,
        difference=0.95,
        recovery=0.95,
        defined=1.0,
        width=1.2,
        false_alarms=0.03,
        power=0.8,
        required="",
        holds=False,
    )
    assert holds(row, setting)
    for change in (
        {"difference": 0.92},
        {"recovery": 0.98},
        {"width": 1.6},
        {"false_alarms": 0.06},
        {"power": 0.7},
    ):
        assert not holds(replace(row, **change), setting)
