"""Orders of students with and without an arm, on synthetic studies with known orders."""

import numpy as np
import pytest

from evalsuite.reports.studies.training_choices.analysis.orders import pair_orders, readings
from evalsuite.reports.studies.training_choices.analysis.scores import StudyScores
from evalsuite.reports.studies.training_choices.design import BASE, Axis

from .conftest import Make

LEVELS = {
    ("kda", BASE): (0.80, 0.70),
    ("gdn", BASE): (0.70, 0.60),
    ("mlstm", BASE): (0.60, 0.50),
    ("kda", "rows"): (0.50, 0.70),
    ("gdn", "rows"): (0.40, 0.60),
    ("mlstm", "rows"): (0.30, 0.50),
    ("mlstm", "bias"): (0.90, 0.50),
}
ROWS = Axis(base="whole", arms=("rows",), published_for=("kda", "gdn"))
BIAS = Axis(base="coupled", arms=("bias",), students=("mlstm",))


@pytest.fixture
def scores(make_scores: Make) -> StudyScores:
    return make_scores(LEVELS, documents=600)


def test_a_defect_of_every_mixer_keeps_an_order_that_it_reverses_where_published(scores: StudyScores) -> None:
    found = {
        (p.arm, p.reading, p.first, p.second): p
        for p in pair_orders(scores, {"heads": ROWS, "gates": BIAS}, "loglikelihood")
    }
    verdicts = {key: pair.verdict for key, pair in found.items()}
    assert verdicts == {
        ("rows", "all", "kda", "gdn"): "kept",
        ("rows", "all", "kda", "mlstm"): "kept",
        ("rows", "all", "gdn", "mlstm"): "kept",
        ("rows", "published", "kda", "gdn"): "kept",
        ("rows", "published", "kda", "mlstm"): "reversed",
        ("rows", "published", "gdn", "mlstm"): "reversed",
        ("bias", "all", "kda", "mlstm"): "reversed",
        ("bias", "all", "gdn", "mlstm"): "reversed",
    }
    for (arm, reading, first, second), pair in found.items():
        arms = dict.fromkeys(ROWS.published_for if reading == "published" else ("kda", "gdn", "mlstm"), arm)
        if arm == "bias":
            arms = {"mlstm": "bias"}
        before = LEVELS[first, BASE][0] - LEVELS[second, BASE][0]
        after = LEVELS[first, arms.get(first, BASE)][0] - LEVELS[second, arms.get(second, BASE)][0]
        assert pair.base.low <= before <= pair.base.high
        assert pair.changed.low <= after <= pair.changed.high
        assert pair.shift.low <= after - before <= pair.shift.high
        assert pair.shift.point == pytest.approx(pair.changed.point - pair.base.point)


def test_a_defect_without_effect_leaves_orders_and_differences(scores: StudyScores) -> None:
    for pair in pair_orders(scores, {"heads": ROWS, "gates": BIAS}, "generation"):
        assert pair.verdict == "kept"
        assert pair.shift.low <= 0 <= pair.shift.high


def test_ties_are_not_decided_and_missing_runs_leave_holes(make_scores: Make) -> None:
    tied = {(s, a): (0.6, 0.6) for s in ("kda", "gdn") for a in (BASE, "rows")}
    whole = make_scores(tied)
    assert {pair.verdict for pair in pair_orders(whole, {"heads": ROWS}, "generation")} == {"not decided"}
    values = {
        protocol: {name: rows for name, rows in runs.items() if not name.startswith("gdn-rows")}
        for protocol, runs in whole.values.items()
    }
    holes = StudyScores(whole.runs, whole.benchmarks, whole.names, values, whole.chance)
    assert pair_orders(holes, {"heads": ROWS}, "generation") == []


def test_a_difference_with_itself_has_the_variance_of_its_own_runs_only(scores: StudyScores) -> None:
    """An arm that one of the two students does not have must not count the other's runs twice."""
    (pair,) = (p for p in pair_orders(scores, {"gates": BIAS}, "loglikelihood") if p.first == "kda")
    alone = scores.contrast("loglikelihood", {("mlstm", BASE): 1.0, ("mlstm", "bias"): -1.0})
    assert alone is not None
    assert pair.shift == alone


def test_the_published_reading_needs_another_set_of_students(scores: StudyScores) -> None:
    assert [reading for reading, _ in readings(scores, BIAS)] == ["all"]
    everywhere = Axis(base="whole", arms=("rows",), published_for=("gdn", "kda", "mlstm"))
    assert [reading for reading, _ in readings(scores, everywhere)] == ["all"]
    assert dict(readings(scores, ROWS))["published"] == {"kda", "gdn"}


def test_runs_that_differ_widen_the_difference(make_scores: Make) -> None:
    widths = []
    for spread in (0.0, 0.1):
        pairs = pair_orders(make_scores(LEVELS, spread=spread), {"heads": ROWS}, "generation")
        widths.append(np.mean([pair.changed.width for pair in pairs]))
    assert widths[1] > 2 * widths[0]
