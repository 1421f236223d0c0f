"""Slopes, plateaus and crossovers of families with known growth."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from evalsuite.reports.measures.scaling import SCALING, families, fitted, orders
from evalsuite.reports.measures.scaling.fits import line, over_runs, power_law
from evalsuite.reports.measures.scaling.ranks import tau_draws
from evalsuite.reports.report import Report, build_report
from evalsuite.reports.statistics import seeds
from evalsuite.reports.statistics.contrasts import Contrast
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run

TOKENS = (1_000_000, 2_000_000, 4_000_000, 8_000_000)


def report_of(folder: Path, curves: dict[str, tuple[float, ...]], documents: int = 500) -> Report:
    """One training run per mixer, whose checkpoints have these true scores at 1M, 2M, 4M … tokens."""
    students = [
        SyntheticCheckpoint(
            f"{mixer}-{tokens}",
            lambda *_, score=score: score,
            lineage={
                "recipe": {"name": "r"},
                "seed": 0,
                "mixers": [mixer] * 2,
                "total_tokens": tokens,
                "complete": tokens == TOKENS[len(scores) - 1],
            },
        )
        for mixer, scores in curves.items()
        for tokens, score in zip(TOKENS, scores, strict=False)
    ]
    run = make_run(
        folder,
        [SyntheticBenchmark("a", "A", "knowledge", documents, protocols=("loglikelihood",))],
        [SyntheticCheckpoint("t", lambda *_: 0.8, "teacher"), *students],
        rho=0.9,
    )
    return build_report([run])


def test_slope_is_least_squares_per_doubling(tmp_path: Path) -> None:
    report = report_of(tmp_path / "run", {"gla": (0.4, 0.5, 0.6, 0.7)}, documents=1000)
    (row,) = report.of(fitted)[0]
    averages = [report.average(i, "loglikelihood", "informative").recovery.point for i in row.checkpoints]
    assert row.recoveries == pytest.approx(averages)
    assert row.values == TOKENS
    assert row.slope.point == pytest.approx(np.polyfit([0, 1, 2, 3], averages, 1)[0])
    assert row.slope.low < 0.125 < row.slope.high
    assert row.slope.width < 0.03
    assert row.last_gain.point == pytest.approx(averages[3] - averages[2])
    assert (row.plateau, row.quantity, row.scope, row.name) == (None, "tokens", "informative", "GLA")


def test_plateau_begins_where_no_later_gain_is_proven(tmp_path: Path) -> None:
    report = report_of(tmp_path / "run", {"gla": (0.4, 0.6, 0.6, 0.6)})
    (row,) = report.of(fitted)[0]
    assert row.plateau == TOKENS[1]
    assert row.last_gain.low < 0 < row.last_gain.high


def test_two_points_are_no_family(tmp_path: Path) -> None:
    report = report_of(tmp_path / "run", {"gla": (0.4, 0.6)}, documents=200)
    assert report.of(fitted) == ([], [])


def test_lines_cross_where_one_run_overtakes_the_other(tmp_path: Path) -> None:
    curves = {"gla": (0.3, 0.4, 0.5, 0.6), "kda": (0.45, 0.46, 0.47, 0.48)}
    report = report_of(tmp_path / "run", curves)
    (row,) = report.of(fitted)[1]
    # 0.3 + 0.1·x = 0.45 + 0.01·x at x = 5/3 doublings of 1M tokens.
    assert row.at.low < TOKENS[0] * 2 ** (5 / 3) < row.at.high
    assert row.at.high / row.at.low < 2
    labels = {report.checkpoints[i].label.split("-")[0] for i in row.first}
    assert labels == {"gla"}
    apart = {"gla": (0.3, 0.4, 0.5, 0.6), "kda": (0.65, 0.66, 0.67, 0.68)}
    assert report_of(tmp_path / "apart", apart, documents=300).of(fitted)[1] == []
    parallel = {"gla": (0.3, 0.4, 0.5, 0.6), "kda": (0.3, 0.4, 0.5, 0.6)}
    assert report_of(tmp_path / "parallel", parallel, documents=300).of(fitted)[1] == []


def test_families_by_size_have_a_teacher_each(tmp_path: Path) -> None:
    runs = []
    for parameters, score in ((10**8, 0.5), (2 * 10**8, 0.6), (4 * 10**8, 0.7)):
        teacher = SyntheticCheckpoint(
            f"t{parameters}", lambda *_: 0.8, "teacher", parameters=parameters, prompts=str(parameters)
        )
        lineage = {
            "recipe": {"name": "r"},
            "mixers": ["gla"] * 2,
            "seed": 0,
            "teacher": {"weights_id": teacher.weights_id},
            "complete": True,
        }
        student = SyntheticCheckpoint(
            f"s{parameters}", lambda *_, score=score: score, lineage=lineage, prompts=str(parameters)
        )
        benchmark = SyntheticBenchmark("a", "A", "knowledge", 500, protocols=("loglikelihood",))
        runs.append(make_run(tmp_path / str(parameters), [benchmark], [teacher, student]))
    (row,) = build_report(runs).of(fitted)[0]
    assert row.quantity == "size"
    assert row.values == pytest.approx([1e8, 2e8, 4e8])
    assert row.slope.low < 0.125 < row.slope.high


def test_runs_with_complete_schedules_of_other_budgets_are_a_family(tmp_path: Path) -> None:
    """Three runs of a recipe and its token variants; other variants have no part in it, of any budget."""
    scores = {
        "r.tokens-1m": (1, 0.4),
        "r": (2, 0.5),
        "r.tokens-4m": (4, 0.6),
        "r.native": (2, 0.2),
        "r.tokens-1m-native": (1, 0.2),
        "r.tokens-8m-short": (8, 0.2),
        "r.short-tokens-4m": (4, 0.2),
    }
    students = [
        SyntheticCheckpoint(
            recipe,
            lambda *_, score=score: score,
            lineage={
                "recipe": {"name": recipe, "hash": recipe},
                "seed": 0,
                "mixers": ["kda"] * 2,
                "total_tokens": millions * 10**6,
            },
        )
        for recipe, (millions, score) in scores.items()
    ]
    run = make_run(
        tmp_path / "run",
        [SyntheticBenchmark("a", "A", "knowledge", 2000, protocols=("loglikelihood",))],
        [SyntheticCheckpoint("t", lambda *_: 0.8, "teacher"), *students],
    )
    (row,) = build_report([run]).of(fitted)[0]
    assert row.values == (1e6, 2e6, 4e6)
    assert [round(each, 1) for each in row.recoveries] == pytest.approx([0.5, 0.6, 0.8], abs=0.1)
    assert row.slope.low < 0.125 < row.slope.high


def report_with(folder: Path, students: list[tuple[str, float, dict[str, object]]]) -> Report:
    """One report of students (label, true score, lineage) of one teacher."""
    models = [
        SyntheticCheckpoint(
            label, lambda *_, score=score: score, lineage={"seed": 0, "mixers": ["kda"] * 2} | lineage
        )
        for label, score, lineage in students
    ]
    run = make_run(
        folder,
        [SyntheticBenchmark("a", "A", "knowledge", 300, protocols=("loglikelihood",))],
        [SyntheticCheckpoint("t", lambda *_: 0.8, "teacher"), *models],
    )
    return build_report([run])


def left_out(report: Report) -> dict[str, set[str]]:
    """Reason → labels."""
    return {
        each.why: {report.checkpoints[i].label for i in each.checkpoints} for each in report.of(families)[1]
    }


def test_curve_of_a_run_has_no_checkpoint_of_an_earlier_stage(tmp_path: Path) -> None:
    """A checkpoint after alignment recovers little: its slope would be that of the change of stage."""
    stages = ("mixer", "block", "kd", "kd", "kd")
    points = ((1, 0.2), (2, 0.3), (4, 0.6), (8, 0.6), (16, 0.6))
    students = [
        (
            f"s{millions}",
            score,
            {
                "recipe": {"name": "r", "hash": "h"},
                "total_tokens": millions * 10**6,
                "complete": millions == 16,
                "stages": [{"name": name} for name in dict.fromkeys(stages[: place + 1])],
            },
        )
        for place, (millions, score) in enumerate(points)
    ]
    report = report_with(tmp_path / "run", students)
    (row,) = report.of(fitted)[0]
    assert row.values == (4e6, 8e6, 16e6)
    assert abs(row.slope.point) < 0.06
    assert left_out(report) == {"their last stage is not 'kd'": {"s1", "s2"}}


def test_budgets_that_differ_by_rounding_are_one_point(tmp_path: Path) -> None:
    """Whole batches round one budget of 1B to three numbers; a slope through them was −1,864 a doubling."""
    students = [
        (name, score, {"recipe": {"name": name, "hash": name}, "total_tokens": tokens})
        for name, score, tokens in (
            ("r.tokens-1b", 0.6, 999_948_288),
            ("r.tokens-1001m", 0.5, 999_972_864),
            ("r.tokens-1002m", 0.4, 999_997_440),
        )
    ]
    report = report_with(tmp_path / "run", students)
    assert report.of(fitted)[0] == []
    assert left_out(report) == {
        "'r.tokens-1b' has the same number of tokens, but for rounding": {"r.tokens-1001m", "r.tokens-1002m"}
    }


def test_one_name_of_several_recipes_is_no_family(tmp_path: Path) -> None:
    """Variants without a name of their own had the base's: other losses became budgets of one recipe."""
    students = [
        (f"{hashed}", score, {"recipe": {"name": "r", "hash": hashed}, "total_tokens": millions * 10**6})
        for hashed, score, millions in (("plain", 0.4, 1), ("mm", 0.6, 2), ("ce-only", 0.3, 4))
    ]
    report = report_with(tmp_path / "run", students)
    assert report.of(fitted)[0] == []
    assert report.of(families)[0] == []
    ((why, who),) = left_out(report).items()
    assert who == {"plain", "mm", "ce-only"}
    assert why.startswith("'r' is the name of several recipes here")


def test_two_recipes_at_one_size_make_no_curve_by_size(tmp_path: Path) -> None:
    runs = []
    for parameters, recipes in ((10**8, ("native", "own")), (2 * 10**8, ("n2",)), (4 * 10**8, ("n4",))):
        teacher = SyntheticCheckpoint(
            f"t{parameters}", lambda *_: 0.8, "teacher", parameters=parameters, prompts=str(parameters)
        )
        models = [
            SyntheticCheckpoint(
                hashed,
                lambda *_: 0.5,
                lineage={
                    "recipe": {"name": "r", "hash": hashed},
                    "mixers": ["gla"] * 2,
                    "seed": 0,
                    "teacher": {"weights_id": teacher.weights_id},
                },
                prompts=str(parameters),
            )
            for hashed in recipes
        ]
        benchmark = SyntheticBenchmark("a", "A", "knowledge", 100, protocols=("loglikelihood",))
        runs.append(make_run(tmp_path / str(parameters), [benchmark], [teacher, *models]))
    report = build_report(runs)
    assert report.of(fitted)[0] == []
    assert set().union(*left_out(report).values()) == {"native", "own", "n2", "n4"}


def report_by_size(
    folder: Path,
    scores: Mapping[tuple[str, int], tuple[float, ...]],
    documents: int = 800,
    settings: dict[int, str] | None = None,
    recipes: tuple[str, ...] = ("r",) * 4,
) -> Report:
    """Students of teachers of 100M, 200M, 400M … parameters: (mixer, seed) → true scores.

    Args:
        settings: seed → a setting of its stage; without one all seeds have the same.
        recipes: the recipe's name at each size.
    """
    runs = []
    for place in range(max(map(len, scores.values()))):
        parameters = 10**8 * 2**place
        teacher = SyntheticCheckpoint(
            f"t{parameters}", lambda *_: 0.8, "teacher", parameters=parameters, prompts=str(parameters)
        )
        students = [
            SyntheticCheckpoint(
                f"{mixer}-{seed}-{parameters}",
                lambda *_, score=curve[place]: score,
                lineage={
                    "recipe": {"name": recipes[place], "hash": f"{parameters} {seed}"},
                    "mixers": [mixer] * 2,
                    "seed": seed,
                    "teacher": {"weights_id": teacher.weights_id},
                    "stages": [{"name": "kd", "tokens": 100, "lr": (settings or {}).get(seed, "1e-3")}],
                },
                prompts=str(parameters),
            )
            for (mixer, seed), curve in scores.items()
            if place < len(curve)
        ]
        benchmark = SyntheticBenchmark("a", "A", "knowledge", documents, protocols=("loglikelihood",))
        path = folder / str(parameters)
        runs.append(make_run(path, [benchmark], [teacher, *students], rho=0.9))
    return build_report(runs)


def test_curves_by_size_cross(tmp_path: Path) -> None:
    scores = {("gla", 0): (0.3, 0.45, 0.6, 0.75), ("kda", 0): (0.5, 0.52, 0.54, 0.56)}
    report = report_by_size(tmp_path / "cross", scores)
    (row,) = report.of(fitted)[1]
    # 0.3 + 0.15·x = 0.5 + 0.02·x at x = 20/13 doublings of 100M parameters.
    assert row.quantity == "size"
    assert row.at.low < 1e8 * 2 ** (20 / 13) < row.at.high
    assert row.at.high / row.at.low < 2
    assert {report.checkpoints[i].label.split("-")[0] for i in row.first} == {"gla"}
    (note,) = SCALING.notes(report)
    assert note.startswith("GLA overtakes KDA under log-likelihood at ")
    assert note.endswith(" parameters of the teacher.")

    # Only sizes that both curves have are compared; the largest one alone would have the lines cross.
    longer = {("gla", 0): (0.3, 0.32, 0.34, 0.78), ("kda", 0): (0.5, 0.52, 0.54)}
    assert report_by_size(tmp_path / "longer", longer).of(fitted)[1] == []
    apart = {("gla", 0): (0.3, 0.4, 0.5), ("kda", 0): (0.65, 0.66, 0.67)}
    assert report_by_size(tmp_path / "apart", apart).of(fitted)[1] == []


def test_variants_of_other_sizes_are_one_recipe(tmp_path: Path) -> None:
    """`200m` names the teacher's size, `10b` a budget: its student is not part of the curve."""
    scores = {("gla", 0): (0.4, 0.5, 0.6)}
    named = ("r.short", "r.200m-short", "r.short-0.4b")
    (row,) = report_by_size(tmp_path / "named", scores, 200, recipes=named).of(fitted)[0]
    assert row.values == (1e8, 2e8, 4e8)
    for other in ("r.10b", "r.400m", "r.short-10b", "q.short"):
        names = ("r.short", "r.200m-short", other)
        report = report_by_size(tmp_path / other, scores, 200, recipes=names)
        (family,) = report.of(families)[0]
        assert family.values == (1e8, 2e8)


def test_runs_of_one_recipe_are_one_curve_with_an_interval_over_runs(tmp_path: Path) -> None:
    curves = {0: (0.4, 0.5, 0.6), 1: (0.4, 0.47, 0.5), 2: (0.4, 0.53, 0.7)}
    scores = {("gla", seed): curve for seed, curve in curves.items()}
    (row,) = report_by_size(tmp_path / "runs", scores, 1500).of(fitted)[0]
    assert (row.runs, len(row.checkpoints), len(row.values)) == (3, 9, 3)
    slopes = [np.polyfit([0, 1, 2], np.array(curve) / 0.8, 1)[0] for curve in curves.values()]
    expected = seeds.over_runs(slopes)
    assert row.slope.point == pytest.approx(expected.point, abs=0.02)
    assert row.slope.width == pytest.approx(expected.width, rel=0.3)
    alone = report_by_size(tmp_path / "one", {("gla", 0): curves[0]}, 1500)
    (single,) = alone.of(fitted)[0]
    assert single.runs == 1
    assert single.slope.width < row.slope.width / 4

    # Seeds of stages with other settings are no runs of one recipe.
    other = report_by_size(tmp_path / "other", scores, 200, {1: "1e-4"})
    assert sorted(row.runs for row in other.of(fitted)[0]) == [1, 2]


def drawn(point: float, deviation: float, seed: int) -> Contrast:
    draws = np.random.default_rng(seed).normal(point, deviation, 20_000)
    return Contrast(point, draws, 500, deviation**2)


def test_interval_over_runs_is_students_t_for_any_combination_of_points() -> None:
    values = np.array([[0.5, 0.6, 0.75], [0.52, 0.6, 0.68], [0.47, 0.61, 0.7], [0.5, 0.65, 0.74]])
    runs = [[drawn(value, 1e-6, at) for at, value in enumerate(run)] for run in values]
    points = over_runs(runs, np.random.default_rng(0))
    x = np.arange(3.0)
    for found, each in (
        (line(x, points)[1], np.polyfit(x, values.T, 1)[0]),
        (line(x, points)[0], np.polyfit(x, values.T, 1)[1]),
        (points[2].minus(points[0]), values[:, 2] - values[:, 0]),
    ):
        expected, interval = seeds.over_runs(each.tolist()), found.interval()
        assert interval.point == pytest.approx(expected.point)
        assert interval.width == pytest.approx(expected.width, rel=0.05)
    alone = over_runs(runs[:1], np.random.default_rng(0))
    assert [each.point for each in alone] == values[0].tolist()
    assert alone[0].variance == runs[0][0].variance


def test_power_law_is_that_of_the_lost_share() -> None:
    values = (1e8, 2e8, 4e8, 8e8)
    recoveries = [1 - 30 * x**-0.25 for x in values]
    made = power_law(values, [drawn(each, 0.004, seed) for seed, each in enumerate(recoveries)])
    assert made is not None
    log_a, exponent = made
    assert exponent.point == pytest.approx(0.25)
    assert np.exp(log_a) == pytest.approx(30)
    # The interval contains what refitted draws do, without linearization.
    lost = 1 - np.random.default_rng(9).normal(recoveries, 0.004, (4000, 4))
    refitted = -np.polyfit(np.log(values), np.log(lost).T, 1)[0]
    interval = exponent.interval()
    assert (interval.low, interval.high) == pytest.approx(np.quantile(refitted, (0.025, 0.975)), abs=0.005)
    # A recovery that may be above 1 has no logarithm of what is lost.
    assert power_law(values, [drawn(each, 0.004, 0) for each in (0.8, 0.9, 0.95, 0.997)]) is None


def test_order_of_recipes_between_two_sizes(tmp_path: Path) -> None:
    same = {
        ("gla", 0): (0.3, 0.4),
        ("kda", 0): (0.5, 0.6),
        ("retnet", 0): (0.4, 0.5),
        ("hgrn2", 0): (0.6, 0.7),
    }
    (row,) = report_by_size(tmp_path / "same", same).of(orders)
    assert (row.tau.point, row.inversions, row.sizes) == (1, (), (1e8, 2e8))
    assert row.tau.low > 0.6

    turned = same | {("hgrn2", 0): (0.6, 0.3)}
    report = report_by_size(tmp_path / "turned", turned)
    (row,) = report.of(orders)
    assert "is 0.00 (" in SCALING.notes(report)[0]
    assert "KDA overtakes HGRN2" in SCALING.notes(report)[0]
    mixers = [report.checkpoints[i].label.split("-")[0] for i, _ in row.students]
    # HGRN2 falls from the first place to the last: three of six pairs.
    assert row.tau.point == 0
    assert {(mixers[i], mixers[j]) for i, j in row.inversions} == {
        ("hgrn2", other) for other in ("gla", "kda", "retnet")
    }
    two = {name: curve for name, curve in same.items() if name[0] in ("gla", "kda")}
    assert report_by_size(tmp_path / "two", two).of(orders) == []


def test_runs_that_differ_widen_the_interval_of_the_order(tmp_path: Path) -> None:
    apart = {"gla": (0.3, 0.4), "kda": (0.4, 0.5), "retnet": (0.5, 0.6)}
    spread = {
        (mixer, seed): tuple(score + shift for score in curve)
        for mixer, curve in apart.items()
        for seed, shift in enumerate((-0.08, 0.0, 0.08))
    }
    (wide,) = report_by_size(tmp_path / "spread", spread).of(orders)
    (narrow,) = report_by_size(tmp_path / "one", {(mixer, 0): curve for mixer, curve in apart.items()}).of(
        orders
    )
    assert (wide.runs, narrow.runs) == ((3, 3, 3), (1, 1, 1))
    assert wide.tau.point == narrow.tau.point == 1
    assert narrow.tau.low > wide.tau.low


def test_tau_of_draws_counts_pairs() -> None:
    def scores(rows: list[list[float]]) -> list[Contrast]:
        return [Contrast(0.0, np.array(draws), 9, 1.0) for draws in zip(*rows, strict=True)]

    first = scores([[1, 2, 3], [1, 2, 3], [1, 3, 2]])
    second = scores([[4, 5, 6], [6, 5, 4], [4, 5, 6]])
    assert tau_draws(first, second) == pytest.approx([1, -1, 1 / 3])
