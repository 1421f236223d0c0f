"""Agreement, retained, flips and κ against counts made by hand from the score rows."""

import shutil
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from evalsuite.reports.analysis.flips import Reference
from evalsuite.reports.measures.agreement import agreement_with_teacher, agreements
from evalsuite.reports.measures.agreement.rows import AgreementPool, AgreementRow
from evalsuite.reports.report import Report, build_report
from evalsuite.reports.statistics.agreement import cohen_kappa
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run
from tests.reports.score_edits import Row, all_rows, edit_rows


def rows_of(run: Path, benchmark: str, protocol: str, label: str) -> dict[str, Row]:
    """doc_id → score row of one checkpoint."""
    return {r["doc_id"]: r for r in all_rows(run, benchmark, protocol) if r["checkpoint"] == label}


def counted(run: Path, benchmark: str, protocol: str, student: str) -> dict[str, float]:
    """The measures of one benchmark, by loops."""
    mine, theirs = (rows_of(run, benchmark, protocol, label) for label in (student, "teacher"))
    same = named = right = kept = lost = gained = 0
    for doc_id, other in theirs.items():
        row = mine[doc_id]
        a, b = row["values"]["acc"] == 1, other["values"]["acc"] == 1
        if protocol == "loglikelihood":
            named += 1
            same += row["choices"]["acc"] == other["choices"]["acc"]
        elif other["detail"]["extracted"]:
            named += 1
            same += row["detail"]["extracted"] == other["detail"]["extracted"] or (a and b)
        right += b
        kept += a and b
        lost += b and not a
        gained += a and not b
    count = len(theirs)
    return {
        "agreement": same / named,
        "retained": kept / right,
        "lost": lost / count,
        "gained": gained / count,
    }


@pytest.mark.parametrize("protocol", ["loglikelihood", "generation"])
def test_benchmarks_match_counts_by_hand(small_run: Path, report: Report, protocol: str) -> None:
    for label in ("strong", "weak"):
        for benchmark in ("arc_easy", "piqa"):
            (row,) = (
                r
                for r in report.of(agreements).by_benchmark
                if (report.checkpoints[r.checkpoint].label, r.scope, r.protocol)
                == (label, benchmark, protocol)
            )
            for name, value in counted(small_run, benchmark, protocol, label).items():
                interval = getattr(row, name).interval
                assert interval.point == pytest.approx(value)
                assert 0 <= interval.low <= value <= interval.high <= 1


@pytest.mark.parametrize("without", ["every document", "some documents"])
def test_a_student_without_stored_choices_has_no_agreement_and_still_retains(
    small_run: Path, tmp_path: Path, report: Report, without: str
) -> None:
    def edited(number: int, row: Row) -> Row:
        lost = without == "every document" or number % 2 == 0
        return row | {"choices": {}} if row["checkpoint"] == "weak" and lost else row

    run = shutil.copytree(small_run, tmp_path / "run")
    for benchmark in ("arc_easy", "piqa"):
        edit_rows(run, benchmark, "loglikelihood", edited)
    found = {
        report.checkpoints[r.checkpoint].label: r
        for report in [build_report([run])]
        for r in report.of(agreements).by_scope
        if (r.scope, r.protocol) == ("all", "loglikelihood")
    }
    weak, strong = found["weak"], found["strong"]
    assert weak.agreement.point is weak.scored_agreement.point is weak.kappa.point is None
    index = [each.label for each in report.checkpoints].index("weak")
    before = agreement_with_teacher(report, index, "loglikelihood")
    assert weak.retained.point == before.retained.point
    assert strong.agreement.point is not None


def test_averages_are_macro_averages_and_perplexities_have_none(report: Report) -> None:
    row = agreement_with_teacher(report, 2, "loglikelihood")
    parts = [
        r
        for r in report.of(agreements).by_benchmark
        if (r.checkpoint, r.protocol) == (2, "loglikelihood") and r.scope in row.benchmarks
    ]
    assert {r.scope for r in parts} == {"arc_easy", "piqa"} == set(row.benchmarks)
    for name in ("agreement", "scored_agreement", "kappa", "retained", "lost", "gained"):
        mean = np.mean([getattr(part, name).point for part in parts])
        assert getattr(row, name).point == pytest.approx(mean)
    categories = {"knowledge", "common_sense", "reasoning", "recall"}
    assert {r.scope for r in report.of(agreements).by_scope} == {"all", "informative", *categories}


def test_needles_are_weighted_by_benchmark_and_context(report: Report) -> None:
    row = agreement_with_teacher(report, 2, "generation", "recall")
    contexts = [
        r.retained.point for r in report.of(agreements).by_benchmark if (r.checkpoint, r.scope) == (2, "niah")
    ]
    assert len(contexts) == 2
    assert row.retained.point == pytest.approx(np.mean(contexts))
    assert row.documents == 200


def test_a_copy_of_the_teacher_agrees_everywhere(tmp_path: Path) -> None:
    """No document is discordant, and the intervals still have a width."""
    benchmarks = [SyntheticBenchmark("arc_easy", "ARC-Easy", "knowledge", 100)]
    models = {"teacher": 0.6, "copy": 0.6}
    run = make_run(tmp_path / "run", benchmarks, models)
    copied = ("values", "choices", "detail", "outcome")
    for protocol in ("loglikelihood", "generation"):
        theirs = rows_of(run, "arc_easy", protocol, "teacher")

        def copy(_: int, row: Row, theirs: dict[str, Row] = theirs) -> Row:
            return row | {name: theirs[row["doc_id"]][name] for name in copied}

        edit_rows(run, "arc_easy", protocol, copy)
    report = build_report([run])
    for protocol in ("loglikelihood", "generation"):
        row = agreement_with_teacher(report, 1, protocol)
        assert row.agreement.point == row.retained.point == row.kappa.point == 1
        assert 0.9 < row.agreement.interval.low < 1
        assert row.lost.point == row.gained.point == 0 < row.lost.interval.high < 0.1


def test_errors_and_unnamed_answers_never_agree(tmp_path: Path) -> None:
    benchmarks = [SyntheticBenchmark("arc_easy", "ARC-Easy", "knowledge", 60)]
    models = {"teacher": 0.6, "student": 0.5}
    run = make_run(tmp_path / "run", benchmarks, models)

    nothing = {"values": {}, "choices": {}, "outcome": "error", "error": "no response", "detail": {}}

    def fail(_: int, row: Row) -> Row:
        return row | nothing if row["checkpoint"] == "student" else row

    for protocol in ("loglikelihood", "generation"):
        edit_rows(run, "arc_easy", protocol, fail)
    report = build_report([run])
    for protocol in ("loglikelihood", "generation"):
        row = agreement_with_teacher(report, 1, protocol)
        assert row.agreement.point == 0
        assert row.retained.point == 0
        assert row.gained.point == 0


def test_benchmarks_without_choices_or_with_fractions_are_left_out(tmp_path: Path) -> None:
    benchmarks = [
        SyntheticBenchmark("lambada", "LAMBADA", "language_modeling", 60, 0.0, (), ("loglikelihood",)),
        SyntheticBenchmark("rouge", "ROUGE", "recall", 60, protocols=("generation",), continuous=True),
        SyntheticBenchmark("ifeval", "IFEval", "instruction_following", 60, protocols=("generation",)),
    ]
    models = {"teacher": 0.6, "student": 0.5}
    run = make_run(tmp_path / "run", benchmarks, models)
    edit_rows(run, "lambada", "loglikelihood", lambda _, row: row | {"choices": {"acc": 0}})
    rows = {row.scope: row for row in build_report([run]).of(agreements).by_benchmark}
    assert set(rows) == {"lambada", "ifeval"}
    for row in rows.values():
        assert row.agreement.interval is None
        assert row.agreement.why
        assert row.retained.interval is not None
        assert row.benchmarks == ()


def test_scored_choices_that_are_unknown_leave_the_average_undefined(tmp_path: Path) -> None:
    benchmarks = [
        SyntheticBenchmark(name, name, "knowledge", 60, protocols=("loglikelihood",)) for name in "ab"
    ]
    models = {"teacher": 0.6, "student": 0.5}
    run = make_run(tmp_path / "run", benchmarks, models)

    def rename(_: int, row: Row) -> Row:
        """The plan's metric becomes one whose choice is not stored."""
        return row | {
            "choices": {"other": row["choices"]["acc"]},
            "values": {"acc": row["values"]["acc"], "other": 1.0},
        }

    edit_rows(run, "b", "loglikelihood", rename)
    report = build_report([run])
    row = agreement_with_teacher(report, 1, "loglikelihood")
    assert row.benchmarks == ("a",)
    assert set(row.benchmarks_with_flips) == {"a", "b"}


def test_runs_of_one_recipe_give_a_ceiling_and_an_interval_over_runs(tmp_path: Path) -> None:
    def lineage(seed: int) -> dict[str, object]:
        return {"recipe": {"name": "r"}, "seed": seed, "mixers": ["gla"] * 2, "total_tokens": 1000}

    benchmarks = [
        SyntheticBenchmark(name, name, "knowledge", 300, protocols=("loglikelihood",)) for name in "ab"
    ]
    models = [
        SyntheticCheckpoint("teacher", lambda *_: 0.7, "teacher"),
        *(
            SyntheticCheckpoint(f"s{seed}", lambda *_, seed=seed: 0.6 - 0.05 * seed, lineage=lineage(seed))
            for seed in (0, 1)
        ),
        SyntheticCheckpoint("other", lambda *_: 0.5),
    ]
    run = make_run(tmp_path / "run", benchmarks, models)
    report = build_report([run])
    (ceiling,) = (row for row in report.of(agreements).ceilings if row.scope == "all")
    assert (ceiling.reference, ceiling.checkpoint) == (1, 2)
    rows = [
        {
            r["doc_id"]: r["choices"]["acc"]
            for r in all_rows(run, name, "loglikelihood")
            if r["checkpoint"] == label
        }
        for name in "ab"
        for label in ("s0", "s1")
    ]
    same = [np.mean([one[d] == two[d] for d in one]) for one, two in ((rows[0], rows[1]), (rows[2], rows[3]))]
    assert ceiling.agreement.point == pytest.approx(np.mean(same))
    found: dict[str, AgreementRow] = {
        report.checkpoints[i].label: agreement_with_teacher(report, i, "loglikelihood") for i in (1, 2, 3)
    }
    assert found["s0"].runs == found["s1"].runs == (1, 2)
    both = [found[name].agreement.point for name in ("s0", "s1")]
    assert found["s0"].recipe_agreement.point == pytest.approx(np.mean(both))
    assert "training runs" in found["other"].recipe_agreement.interval.method
    assert found["other"].recipe_agreement.interval.width > found["other"].agreement.interval.width


def test_clusters_widen_the_interval(tmp_path: Path) -> None:
    widths = []
    for size in (0, 20):
        benchmarks = [SyntheticBenchmark("a", "A", "knowledge", 400, cluster_size=size)]
        models = {"teacher": 0.6, "student": 0.5}
        run = make_run(tmp_path / str(size), benchmarks, models)
        (row,) = (
            r
            for r in build_report([run]).of(agreements).by_scope
            if (r.scope, r.protocol) == ("all", "loglikelihood")
        )
        widths.append(row.retained.interval.width)
        assert ("clusters" in row.retained.interval.method) == bool(size)
    assert all(one < other for one, other in pairwise(widths))


def test_a_reference_is_right_where_half_of_its_seeds_are() -> None:
    cell = SimpleNamespace(
        values=np.array([[[1, 0, 0], [1, 1, 0]]]), answers=np.array([[[0, -1, -1], [0, 2, -1]]])
    )
    reference = Reference(cell, 0)  # type: ignore[arg-type]
    assert (
        reference.documents("right").tolist() == reference.documents("named").tolist() == [True, True, False]
    )


def test_seeds_are_compared_one_by_one(tmp_path: Path) -> None:
    benchmarks = [SyntheticBenchmark("a", "A", "knowledge", 80, protocols=("generation",), seeds=(0, 1, 2))]
    models = {"teacher": 0.7, "student": 0.5}
    run = make_run(tmp_path / "run", benchmarks, models)
    report = build_report([run])
    (cell,) = report.tensor.cells
    (row,) = report.of(agreements).by_benchmark
    theirs, mine = cell.values
    assert row.lost.point == pytest.approx(float((theirs * (1 - mine)).mean()))
    right = theirs.mean(axis=0) >= 0.5
    assert row.retained.point == pytest.approx(float(mine[:, right].mean()))
    values = Reference(cell, 0).values("lost", 1)
    assert values.shape == (3, 80)


def test_kappa_is_cohens() -> None:
    """Compared with the definition, and the influence values with a numerical derivative."""
    rng = np.random.default_rng(7)
    first = rng.integers(-1, 3, 400)
    second = np.where(rng.random(400) < 0.6, first, rng.integers(-1, 3, 400))

    def kappa(weights: np.ndarray) -> float:
        weights = weights / weights.sum()
        observed = float(weights @ (first == second))
        expected = sum(float(weights @ (first == k)) * float(weights @ (second == k)) for k in range(-1, 3))
        return (observed - expected) / (1 - expected)

    values = cohen_kappa(first, second)
    whole = kappa(np.ones(400))
    assert values.mean() == pytest.approx(whole)
    for i in (0, 17, 399):
        weights = np.ones(400)
        weights[i] += 1e-4
        assert (kappa(weights) - whole) / (1e-4 / 400) == pytest.approx(values[i] - whole, rel=1e-3, abs=1e-3)


def test_kappa_is_undefined_where_both_always_say_the_same() -> None:
    assert cohen_kappa(np.zeros(5, int), np.zeros(5, int)) is None
    assert cohen_kappa(np.zeros(5, int), np.ones(5, int)).mean() == 0


def test_pairing_does_not_depend_on_the_other_students(small_run: Path, report: Report) -> None:
    alone = AgreementPool(report.tensor, "loglikelihood", 0, [1])
    both = AgreementPool(report.tensor, "loglikelihood", 0)
    cells = range(len(alone.cells))
    for measure in ("agreement", "retained"):
        one, other = (pool.contrast(measure, 1, cells) for pool in (alone, both))
        assert np.array_equal(one.draws, other.draws)
