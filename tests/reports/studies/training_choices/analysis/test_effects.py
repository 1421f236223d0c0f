"""Effects, verdicts and drops on synthetic studies with known effects."""

import numpy as np
import pytest

from evalsuite.reports.statistics.intervals import Interval
from evalsuite.reports.studies.training_choices.analysis.effects import (
    best_student,
    drop,
    effects,
    teacher_leads,
    verdict,
)
from evalsuite.reports.studies.training_choices.analysis.paper_effects import CONTRASTS, printed_effect
from evalsuite.reports.studies.training_choices.analysis.scores import StudyScores
from evalsuite.reports.studies.training_choices.design import BASE, TEACHER, Axis, StudyRun

from .conftest import LEVELS, Make

AXES = {
    "objective": Axis(base="KL", arms=("ce",)),
    "layers": Axis(base="selected", arms=("uniform",), students=("hybrid",)),
}


def test_effects_are_recovered_under_each_protocol(make_scores: Make) -> None:
    found = {(each.arm, each.student): each for each in effects(make_scores(), AXES)}
    assert set(found) == {("ce", "hybrid"), ("ce", "kda"), ("ce", None), ("uniform", "hybrid")}
    for (arm, student), effect in found.items():
        students = [student] if student else ["hybrid", "kda"]
        for place, protocol in enumerate(("loglikelihood", "generation")):
            truth = np.mean([LEVELS[s, arm][place] - LEVELS[s, BASE][place] for s in students])
            interval = effect.under(protocol)
            assert interval.low <= truth <= interval.high, (arm, student, protocol)
            assert interval.width < 0.15
    assert found["ce", None].generation.high < 0 < found["ce", None].loglikelihood.high


def test_intervals_cover_the_truth_when_runs_differ(make_scores: Make) -> None:
    """95 % intervals over 40 studies miss the true effect a few times, not never documents only would."""
    truth = LEVELS["hybrid", "ce"][1] - LEVELS["hybrid", BASE][1]
    misses = 0
    for seed in range(40):
        (effect,) = (
            each
            for each in effects(make_scores(spread=0.05, seed=seed, documents=150), AXES)
            if (each.arm, each.student) == ("ce", "hybrid")
        )
        misses += not effect.generation.low <= truth <= effect.generation.high
    assert misses <= 5


def test_the_spread_between_runs_widens_intervals(make_scores: Make) -> None:
    widths = [effects(make_scores(spread=spread), AXES)[0].generation.width for spread in (0.0, 0.1)]
    assert widths[1] > 2 * widths[0]


def test_missing_runs_are_named_and_leave_holes(make_scores: Make) -> None:
    whole = make_scores()
    values = {
        protocol: {name: rows for name, rows in runs.items() if not name.startswith("hybrid-uniform")}
        for protocol, runs in whole.values.items()
    }
    del values["generation"]["kda-ce-seed1"]
    scores = StudyScores(whole.runs, whole.benchmarks, whole.names, values, whole.chance)
    assert [run.name for run in scores.missing] == [
        "hybrid-uniform-seed0",
        "hybrid-uniform-seed1",
        "hybrid-uniform-seed2",
        "kda-ce-seed1",
    ]
    assert {each.arm for each in effects(scores, AXES)} == {"ce"}
    assert len(scores.of("kda", "ce")) == 2


@pytest.mark.parametrize(
    ("low", "high", "printed", "expected"),
    [
        (-0.2, -0.1, -5.0, "agrees"),
        (-0.2, -0.1, 5.0, "opposite"),
        (0.1, 0.2, 5.0, "agrees"),
        (-0.1, 0.2, 5.0, "not decided"),
        (0.1, 0.2, 0.04, "not decided"),
    ],
)
def test_verdict_compares_signs(low: float, high: float, printed: float, expected: str) -> None:
    assert verdict(Interval((low + high) / 2, low, high), printed) == expected


def test_best_student_and_the_finding(make_scores: Make) -> None:
    scores = make_scores()
    best = best_student(scores, ["hybrid"])
    assert best is not None
    assert best.student == "kda"
    assert best.loglikelihood.low <= 0.12 <= best.loglikelihood.high
    assert best.generation.low <= 0.45 <= best.generation.high
    assert best.gap.point == pytest.approx(best.generation.point - best.loglikelihood.point)
    assert "finding holds here" in best.finding
    hybrid = best_student(scores, scores.students)
    assert hybrid is not None
    assert hybrid == drop(scores, hybrid.student)
    turned = {key: (levels[1], levels[0]) for key, levels in LEVELS.items()}
    opposite = best_student(make_scores(turned), ["hybrid"])
    assert opposite is not None
    assert "does not hold here" in opposite.finding
    even = drop(make_scores({("kda", BASE): (0.7, 0.7)}), "kda")
    assert even is not None
    assert "is not decided here" in even.finding


def test_a_student_at_chance_has_lost_the_whole_lead_under_each_protocol(make_scores: Make) -> None:
    scores = make_scores({("kda", BASE): (0.25, 0.0), ("gdn", BASE): (0.625, 0.5)}, documents=4000)
    leads = teacher_leads(scores)
    assert leads == pytest.approx({"loglikelihood": 0.75, "generation": 1.0})
    lost, half = (drop(scores, student, units=leads) for student in ("kda", "gdn"))
    assert lost is not None
    assert half is not None
    assert lost.generation.point == pytest.approx(1)
    assert lost.loglikelihood.low <= 1 <= lost.loglikelihood.high
    # In points the gap is 25 by the level of chance alone.
    assert lost.gap.low <= 0 <= lost.gap.high
    in_points = drop(scores, "kda")
    assert in_points is not None
    assert in_points.gap.low > 0.2
    assert half.loglikelihood.point == pytest.approx(0.5, abs=0.02)
    assert half.gap.low <= 0 <= half.gap.high


def test_without_repeated_runs_there_is_no_interval(make_scores: Make) -> None:
    scores = make_scores(seeds=1)
    assert drop(scores, "kda") is None
    assert effects(scores, AXES) == []


def test_benchmarks_weigh_equally_whatever_their_documents() -> None:
    run = StudyRun("kda", BASE, 0)
    values = {run.name: np.array([1.0, 0.0, 0.0, 0.0]), TEACHER: np.ones(4)}
    scores = StudyScores(
        (run,),
        np.array([0, 1, 1, 1]),
        ("one", "two"),
        {"loglikelihood": values, "generation": values},
        {"loglikelihood": np.full(4, 0.25), "generation": np.zeros(4)},
    )
    assert scores.weights @ values[run.name] == pytest.approx(0.5)


def test_printed_effects_are_differences_of_the_papers_tables() -> None:
    frozen = printed_effect("trained-softmax", "generation")
    assert frozen is not None
    # Table 6: 40.7 17.5 50.0 37.7 35.7 35.8 trained, 47.5 23.7 57.8 43.5 37.3 39.0 frozen.
    assert frozen.value == pytest.approx((217.4 - 248.8) / 6)
    assert (frozen.table, frozen.benchmarks) == ("Table 6", 6)
    assert printed_effect("text-only", "generation") is None
    assert printed_effect("top-10", "loglikelihood") is None
    assert all(printed_effect(arm, "generation") is not None for arm in CONTRASTS)
    for protocol, table, benchmarks in (("loglikelihood", "Table 19", 7), ("generation", "Table 2", 11)):
        printed = printed_effect("mamba2", protocol)
        assert printed is not None
        assert (printed.table, printed.benchmarks) == (table, benchmarks)
