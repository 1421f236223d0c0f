"""Intervals and verdicts contain what moves results: clusters, sampling seeds, runs, multiplicity."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalsuite.foundation.strict import parse
from evalsuite.reports import Policy, run_gate
from evalsuite.reports.json_values import to_json
from evalsuite.reports.page.benchmark_cells import benchmark_columns
from evalsuite.reports.report import build_report
from evalsuite.reports.statistics import paired
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run


def constant(value: float) -> Any:
    """The same true score everywhere."""
    return lambda benchmark, protocol, context: value


def policy(*rules: dict[str, Any]) -> Policy:
    """A policy of these rules."""
    return parse({"rules": list(rules)}, Policy, "policy")


def lineage(recipe: str, seed: int) -> dict[str, Any]:
    """The lineage of one training run."""
    return {"recipe": {"name": recipe, "hash": f"{recipe}{seed}"}, "seed": seed, "mixers": ["gla"] * 4}


@pytest.fixture
def pair(tmp_path: Path) -> Any:
    """Factory of a run with a teacher and one student on one benchmark."""

    def make(
        name: str = "run", teacher: float = 0.7, student: float = 0.6, seed: int = 0, **spec: Any
    ) -> Path:
        benchmark = SyntheticBenchmark("f", "F", "knowledge", **spec)
        models = [
            SyntheticCheckpoint("t", constant(teacher), "teacher"),
            SyntheticCheckpoint("s", constant(student)),
        ]
        return make_run(tmp_path / name, [benchmark], models, seed)

    return make


def test_clusters_widen_intervals(pair: Any) -> None:
    """20 clusters of 10 that share half of a model's luck hold less than 200 independent documents."""
    clustered = [
        build_report([pair(f"c{i}", documents=200, cluster_size=10, seed=i)])
        .average(1, "generation")
        .drop.width
        for i in range(3)
    ]
    free = [
        build_report([pair(f"i{i}", documents=200, seed=i)]).average(1, "generation").drop.width
        for i in range(3)
    ]
    assert sum(clustered) > 1.25 * sum(free)


def test_three_sampling_seeds_have_the_tails_of_two_degrees_of_freedom(pair: Any) -> None:
    run = pair(documents=400, seeds=(0, 1, 2), seed_deviation=0.5, protocols=("generation",))
    report = build_report([run])
    row = next(row for row in report.scores if row.checkpoint == 1)
    variance = report.tensor.cells[0].seed_variance()
    # 4.30 is Student's 97.5 % quantile with two degrees of freedom; 1.96 is the normal one.
    assert row.drop.width / 2 > 3.0 * float(variance.max()) ** 0.5


def test_continuous_scores_on_few_documents_have_intervals_of_their_own_size(pair: Any) -> None:
    run = pair(documents=12, continuous=True, teacher=0.5, student=0.45, protocols=("generation",))
    report = build_report([run])
    row = next(row for row in report.scores if row.checkpoint == 1)
    cell = report.tensor.cells[0]
    differences = cell.scores()[0] - cell.scores()[1]
    t_width = 2 * 2.2 * float(differences.std(ddof=1)) / 12**0.5
    assert row.drop.width < 1.5 * t_width
    assert 0 <= row.score.low <= row.score.high <= 1


def test_recovery_of_scores_that_cannot_be_negative_is_not_negative(pair: Any) -> None:
    for seed in range(4):
        run = pair(f"run{seed}", documents=40, continuous=True, teacher=0.6, student=0.05, seed=seed)
        for row in build_report([run]).scores:
            if row.recovery.interval is not None:
                assert row.recovery.interval.low >= 0


def test_what_the_gate_measures_is_that_of_the_page(pair: Any) -> None:
    rule = {"metric": "chance_normalized_recovery", "min": 0.5, "protocol": "generation"}
    measured = set()
    for seed in range(1, 5):
        run = pair(f"run{seed}", documents=200, teacher=0.38, student=0.34, seed=seed)
        shown = build_report([run]).average(1, "generation").chance_normalized_recovery
        result = run_gate([run], policy(rule)).results[0]
        measured.add(result.outcome != "unmeasured")
        # The gate needs a stronger proof of the teacher's lead.
        if result.outcome != "unmeasured":
            assert shown.interval is not None
            ends = (result.low, result.high)
            assert ends == pytest.approx((shown.interval.low, shown.interval.high), abs=1e-9)
    assert measured == {True, False}


def test_undefined_recovery_names_the_real_reason(pair: Any) -> None:
    run = pair(documents=20, teacher=0.1, student=0.1, seed=1, protocols=("generation",))
    report = build_report([run])
    row = report.average(1, "generation")
    assert report.average(0, "generation").score.point > 0
    assert row.recovery.interval is None
    assert "is not above zero" not in row.recovery.why
    assert "interval" in row.recovery.why


def test_more_than_500_decisions_can_be_proven(pair: Any) -> None:
    run = pair(documents=300, teacher=0.9, student=0.5)
    verdict = run_gate([run], policy(*[{"metric": "recovery", "min": 0.9}] * 251))
    assert len(verdict.results) == 502
    assert verdict.exit_code == 1


@pytest.mark.parametrize("spec", [{"seeds": (0, 1, 2), "seed_deviation": 0.2}, {"cluster_size": 10}])
def test_regression_has_the_variance_of_a_drop(pair: Any, spec: dict[str, Any]) -> None:
    run = pair(documents=200, protocols=("generation",), **spec)
    verdict = run_gate(
        [run],
        policy(
            {"metric": "drop", "max": 5, "protocol": "generation"},
            {"metric": "regression", "max": 5, "baseline": str(run), "baseline_checkpoint": "t"},
        ),
    )
    drop, regression = verdict.results
    assert regression.point == pytest.approx(drop.point)
    assert regression.high - regression.low == pytest.approx(drop.high - drop.low, rel=0.1)


def test_another_student_moves_no_number(tmp_path: Path) -> None:
    benchmarks = [
        SyntheticBenchmark("f", "F", "knowledge", 150, seeds=(0, 1), seed_deviation=0.1),
        SyntheticBenchmark("g", "G", "recall", 12, continuous=True),
        SyntheticBenchmark("h", "H", "reasoning", 120, cluster_size=10),
    ]
    models = [
        SyntheticCheckpoint("t", constant(0.7), "teacher"),
        SyntheticCheckpoint("a", constant(0.6)),
        SyntheticCheckpoint("b", constant(0.65)),
    ]
    small = build_report([make_run(tmp_path / "small", benchmarks, models[:2])])
    large = build_report([make_run(tmp_path / "large", benchmarks, models)])
    for kind in ("averages", "scores", "gaps"):
        before = [_without_rank(row) for row in getattr(small, kind)]
        after = [_without_rank(row) for row in getattr(large, kind) if row.checkpoint != 2]
        assert before == after, kind
    before = [to_json(row.difference) for row in small.pairs]
    assert before == [to_json(row.difference) for row in large.pairs if 2 not in (row.first, row.second)]


def _without_rank(row: Any) -> dict[str, Any]:
    """A row without what depends on the other students: ranks and corrections over all of them."""
    ignored = ("rank", "rank_low", "rank_high", "p_holm")
    return {name: value for name, value in to_json(row).items() if name not in ignored}


@pytest.mark.long
def test_cells_that_show_gain_or_loss_are_corrected_for_multiplicity(tmp_path: Path) -> None:
    benchmarks = [SyntheticBenchmark(f"b{i}", f"B{i}", "knowledge", 200) for i in range(5)]
    models = [SyntheticCheckpoint("t", constant(0.6), "teacher")]
    models += [SyntheticCheckpoint(f"s{i}", constant(0.6)) for i in range(10)]
    report = build_report([make_run(tmp_path / "run", benchmarks, models, seed=1)])
    cells = [
        column.cell(student).kind for column in benchmark_columns(report) for student in report.students()
    ]
    assert len(cells) == 100
    assert set(cells) == {"tie"}


def test_rounding_errors_are_no_wins() -> None:
    first = np.array([0.1 + 0.2, 0.5, 1.0])
    second = np.array([0.3, 0.5, 0.0])
    counts = paired.paired_counts(first, second)
    assert (counts.wins, counts.losses, counts.ties) == (1, 0, 2)


def test_pairs_have_no_pooled_mcnemar_test(pair: Any) -> None:
    """It pools documents over benchmarks, and can contradict the sign of the macro difference."""
    for row in build_report([pair(documents=100)]).pairs:
        assert "mcnemar" not in to_json(row)


def test_runs_of_one_recipe_are_never_proven_different(tmp_path: Path) -> None:
    models = [
        SyntheticCheckpoint("t", constant(0.8), "teacher"),
        SyntheticCheckpoint("a0", constant(0.75), lineage=lineage("a", 0)),
        SyntheticCheckpoint("a1", constant(0.45), lineage=lineage("a", 1)),
        SyntheticCheckpoint("b0", constant(0.60), lineage=lineage("b", 0)),
    ]
    benchmark = SyntheticBenchmark("f", "F", "knowledge", 400, protocols=("loglikelihood",))
    report = build_report([make_run(tmp_path / "run", [benchmark], models)])
    proven = {(row.first, row.second): row.proven for row in report.pairs}
    assert not proven[1, 2]
    # The other recipe is within the spread of this one's runs.
    assert not proven[1, 3]
    assert not proven[2, 3]
    ranks = [
        (row.rank_low, row.rank_high) for row in report.averages if row.scope == "all" and row.checkpoint
    ]
    assert ranks == [(1, 3)] * 3


@pytest.mark.long
def test_interval_of_a_recipe_contains_its_runs(tmp_path: Path) -> None:
    models = [
        SyntheticCheckpoint("t", constant(0.8), "teacher"),
        *[
            SyntheticCheckpoint(f"a{s}", constant(v), lineage=lineage("a", s))
            for s, v in enumerate((0.62, 0.70, 0.66))
        ],
        SyntheticCheckpoint("b0", constant(0.6), lineage=lineage("b", 0)),
    ]
    benchmark = SyntheticBenchmark("f", "F", "knowledge", 3000, protocols=("loglikelihood",))
    report = build_report([make_run(tmp_path / "run", [benchmark], models)])
    rows = [row for row in report.averages if row.scope == "all" and row.checkpoint]
    found = [to_json(row).get("recipe_recovery") for row in rows]
    assert all(found), "a row lacks the interval of its recipe"
    points = [row.recovery.point for row in rows[:3]]
    assert found[0] == found[1] == found[2]
    assert found[0]["point"] == pytest.approx(sum(points) / 3, abs=1e-9)
    # t with two degrees of freedom over three runs.
    assert found[0]["high"] - found[0]["low"] > 2 * 4.3 * 0.03 / 3**0.5
    # A single run of another recipe borrows the spread.
    assert found[3]["high"] - found[3]["low"] > 2 * rows[3].recovery.interval.width
    alone = build_report([make_run(tmp_path / "alone", [benchmark], [models[0], models[4]])])
    row = to_json(next(row for row in alone.averages if row.scope == "all" and row.checkpoint))
    assert row["recipe_recovery"]["method"] == "one run, documents only"


def test_two_families_with_other_prompts_have_cells_of_their_own(tmp_path: Path) -> None:
    def family(name: str, prompts: str) -> list[Any]:
        teacher = SyntheticCheckpoint(f"t{name}", constant(0.7), "teacher", prompts=prompts)
        its = {"teacher": {"weights_id": teacher.weights_id, "label": teacher.label}}
        student = SyntheticCheckpoint(f"s{name}", constant(0.6), lineage=its, prompts=prompts)
        return [teacher, student]

    benchmark = SyntheticBenchmark("f", "F", "knowledge", 100)
    run = make_run(tmp_path / "run", [benchmark], [*family("1", ""), *family("2", " other")])
    report = build_report([run])
    compared = {(row.checkpoint, row.protocol) for row in report.scores if row.drop is not None}
    assert compared == {(s, p) for s in (1, 3) for p in ("loglikelihood", "generation")}
    assert all(row.missing == () for row in report.averages)
    assert {row.checkpoint for row in report.gaps} == {1, 3}


def test_gains_are_listed_also_where_the_teacher_is_below_chance(tmp_path: Path) -> None:
    models = [
        SyntheticCheckpoint("t", constant(0.1), "teacher"),
        SyntheticCheckpoint("s", constant(0.5)),
    ]
    benchmark = SyntheticBenchmark("f", "Facts", "knowledge", 400)
    report = build_report([make_run(tmp_path / "run", [benchmark], models)])
    listed = [text for text in report.warnings if text.startswith("Significantly above their teacher")]
    assert any("under generation" in text and "Facts" in text for text in listed)
