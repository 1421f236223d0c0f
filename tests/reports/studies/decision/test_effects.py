"""Contrasts of the deciding study: shares, intervals, Holm, detectable effects, regret."""

import numpy as np
import pytest
from scipy import stats

from evalsuite.reports.studies.decision.choice import choose
from evalsuite.reports.studies.decision.effects import Cell, Run, between, detectable, effect
from evalsuite.reports.studies.decision.protocol import load_protocol

WAYS = ("generated", "inside")
CHANCE = {"generated": 0.0, "inside": 0.25}
RUNS = [Run(student, seed) for student in ("kda", "gla") for seed in range(3)]


def constant(share, documents=200):
    """Scores of which exactly `share` are 1."""
    scores = np.zeros(documents)
    scores[: round(share * documents)] = 1
    return scores


def cell(rates, teacher=(0.8, 0.85), name="512"):
    """A cell in which every run scores `rates` by (generated, inside)."""
    runs = {run: dict(zip(WAYS, map(constant, rates[run]), strict=True)) for run in RUNS}
    return Cell(name, dict(zip(WAYS, map(constant, teacher), strict=True)), runs, CHANCE)


def test_a_share_is_of_the_teachers_lead_over_chance():
    equal = np.full((1, 200), 1 / 200)
    one = cell(dict.fromkeys(RUNS, (0.4, 0.55)))
    assert one.shares(RUNS[0], "generated", equal)[0] == pytest.approx(50)
    assert one.shares(RUNS[0], "inside", equal)[0] == pytest.approx(100 * 0.30 / 0.60)
    lead, low = one.lead("inside")
    assert lead == pytest.approx(60)
    error = constant(0.85).std(ddof=1) / np.sqrt(200)
    assert low == pytest.approx(60 - 100 * error * stats.t.ppf(0.975, 199))


def test_the_effect_is_a_mean_over_students_of_their_runs_and_its_spread_that_of_runs():
    rates = {run: (0.4 + 0.04 * run.seed, 0.70) for run in RUNS}
    rates |= {run: (0.16, 0.70) for run in RUNS if run.student == "gla"}
    found = effect([cell(rates)], RUNS, WAYS, draws=400)
    inside = 100 * 0.45 / 0.60
    assert found.estimate == pytest.approx(((inside - 55) + (inside - 20)) / 2)
    assert found.df == 4
    assert found.run_sd == pytest.approx(np.sqrt(2 * 5.0**2 / 4))
    assert found.low < found.estimate < found.high
    assert found.error**2 == pytest.approx((2 * found.run_sd**2 / 3) / 4 + found.document_error**2, rel=1e-6)
    assert found.p == pytest.approx(2 * stats.t.sf(found.estimate / found.error, 4))


def test_runs_that_differ_widen_the_interval_beyond_the_documents():
    level = dict.fromkeys(RUNS, (0.4, 0.55))
    apart = {run: (0.4 + 0.1 * (run.seed - 1), 0.55) for run in RUNS}
    same, spread = (effect([cell(rates)], RUNS, WAYS, draws=400) for rates in (level, apart))
    assert same.run_sd == pytest.approx(0, abs=1e-9)
    assert spread.high - spread.low > 1.5 * (same.high - same.low)


def test_intervals_cover_the_truth():
    random = np.random.default_rng(0)
    covered = 0
    for number in range(60):
        moves = {(run, way): random.normal(0, 0.03) for run in RUNS for way in WAYS}
        runs = {
            run: {
                "generated": (random.random(300) < 0.45 + moves[run, "generated"]).astype(float),
                "inside": (random.random(300) < 0.58 + moves[run, "inside"]).astype(float),
            }
            for run in RUNS
        }
        teacher = {
            way: (random.random(300) < rate).astype(float)
            for way, rate in zip(WAYS, (0.9, 0.91), strict=True)
        }
        truth = 100 * (0.58 - 0.25) / (0.91 - 0.25) - 50
        found = effect([Cell("512", teacher, runs, CHANCE)], RUNS, WAYS, seed=number, draws=200)
        covered += found.low <= truth <= found.high
    assert covered >= 54  # of 60; below with probability 3 % if the coverage is 95 %


@pytest.mark.parametrize(
    ("cells", "runs", "message"),
    [
        ([], RUNS, "no cell is admitted"),
        ([cell(dict.fromkeys(RUNS, (0.4, 0.5)))], RUNS[::3], "a student with two runs"),
    ],
)
def test_what_cannot_be_estimated_is_refused(cells, runs, message):
    with pytest.raises(ValueError, match=message):
        effect(cells, runs, WAYS)


def test_floors_and_ceilings_are_cells_where_both_ways_are_at_an_end():
    floor = cell(dict.fromkeys(RUNS, (0.0, 0.26)), name="floor")
    ceiling = cell(dict.fromkeys(RUNS, (0.8, 0.84)), name="ceiling")
    half = cell(dict.fromkeys(RUNS, (0.0, 0.5)), name="half")
    assert [each.name for each in between([floor, ceiling, half], RUNS, WAYS)] == ["half"]


def test_a_detectable_effect_is_detected_with_its_power():
    shift = detectable(5.0, 1.5, students=2, runs=3, alpha=0.05, tests=1, beta=0.2)
    random = np.random.default_rng(1)
    means = shift + random.normal(0, np.sqrt(25 / 6 + 1.5**2), 20000)
    # The variance that is estimated has both parts, as `effect` has.
    errors = np.sqrt((25 / 6 + 1.5**2) * random.chisquare(4, 20000) / 4)
    power = (means / errors > stats.t.ppf(0.975, 4)).mean()
    assert power == pytest.approx(0.8, abs=0.015)


def test_the_regret_of_a_choice():
    target = {run: constant(0.1 * (1 + place)) for place, run in enumerate(RUNS)}
    right = {run: float(place) for place, run in enumerate(RUNS)}
    wrong = {run: -score for run, score in right.items()}
    by_right, by_wrong = choose({"right": right, "wrong": wrong}, target, draws=200)
    assert (by_right.run, by_right.regret) == (RUNS[5], pytest.approx(0))
    assert by_right.high == pytest.approx(0)
    assert (by_wrong.run, by_wrong.regret) == (RUNS[0], pytest.approx(50))
    assert 20 < by_wrong.low < 50 < by_wrong.high < 65
    with pytest.raises(ValueError, match="none: no score of kda, seed 0"):
        choose({"none": {}}, target)


def test_the_protocol_names_students_of_its_recipes():
    from evalsuite.distill import load_recipe

    protocol = load_protocol()
    for teacher in protocol.teachers.values():
        recipe = load_recipe(teacher.recipe, [f"student.mixers=[{', '.join(teacher.students)}]"])
        assert list(recipe.student.mixers) == list(teacher.students)
        assert 9.0e6 < recipe.tokens < 9.3e6
