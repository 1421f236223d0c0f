"""Recovery, gap and ranks: hand-counted cases, the papers' own figures, and what must stay undefined."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalsuite.foundation.taxonomy import OUTCOMES
from evalsuite.reports.analysis.bootstrap_sample import BootstrapSample, ResampledStratum
from evalsuite.reports.analysis.recovery import chance_normalized_recovery, recovery, win_or_tie_rate
from evalsuite.reports.analysis.replicates import replicates_of
from evalsuite.reports.analysis.result_tensor import load_result_tensor
from evalsuite.reports.analysis.scopes import weights_of
from evalsuite.reports.measures.pairs import replicate_sentences
from evalsuite.reports.measures.papers import paper_comparison
from evalsuite.reports.references.papers import (
    CITATIONS,
    linearizing_scores,
    macro_gap,
    macro_recovery,
    nearest_scale,
    paper_scores,
)
from evalsuite.reports.report import build_report
from evalsuite.reports.statistics.bootstrap import Stratum
from evalsuite.reports.statistics.hypothesis_tests import paired_minimum_detectable_effect
from evalsuite.reports.statistics.seeds import seed_effect
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run


def resampled(*strata: list[tuple[float, ...]], weights: list[float] | None = None) -> BootstrapSample:
    """Rows of teacher, student (and chance) per benchmark."""
    names = ("teacher", "student", "chance", "other")
    resampled = [
        ResampledStratum(Stratum(np.array(rows), names[: len(rows[0])], f"benchmark {i}"))
        for i, rows in enumerate(strata)
    ]
    return BootstrapSample(resampled, weights or [1.0] * len(strata))


EASY = [(1.0, 1.0, 0.25)] * 60 + [(1.0, 0.0, 0.25)] * 20 + [(0.0, 0.0, 0.25)] * 20
HARD = [(1.0, 1.0, 0.25)] * 20 + [(0.0, 1.0, 0.25)] * 12 + [(0.0, 0.0, 0.25)] * 68


def test_recovery_is_the_ratio_of_macro_averages() -> None:
    found = recovery(resampled(EASY, HARD), 1, 0).interval
    assert found.point == pytest.approx((0.60 + 0.32) / (0.80 + 0.20))
    assert found.low < found.point < found.high
    assert "bootstrap" in found.method
    weighted = recovery(resampled(EASY, HARD, weights=[3, 1]), 1, 0)
    assert weighted.point == pytest.approx((3 * 0.60 + 0.32) / (3 * 0.80 + 0.20))


def test_chance_normalized_recovery_subtracts_chance() -> None:
    found = chance_normalized_recovery(resampled(EASY), 1, 0, 2)
    assert found.point == pytest.approx((0.60 - 0.25) / (0.80 - 0.25))


def test_recovery_of_teacher_at_chance_is_undefined() -> None:
    undefined = chance_normalized_recovery(resampled(HARD), 1, 0, 2)
    assert undefined.interval is None
    assert undefined.why == "the teacher is not above chance"
    nothing = recovery(resampled([(0.0, 1.0)] * 30), 1, 0)
    assert nothing.point is None
    assert "not above zero" in nothing.why


def test_few_discordant_documents_have_positive_width() -> None:
    same = recovery(resampled([(1.0, 1.0)] * 150 + [(0.0, 0.0)] * 50), 1, 0).interval
    assert same.point == 1
    assert same.high - same.low > 0.02
    assert "Tango" in same.method


@pytest.mark.parametrize("lost", [0, 1, 30, 59, 60])
def test_intervals_have_positive_width(lost: int) -> None:
    """Also where the student loses every document: a bootstrap would be as sure as where it loses none."""
    data = resampled([(1.0, 0.0, 1.0, 1.0)] * lost + [(1.0, 1.0, 1.0, 1.0)] * (60 - lost))
    assert data.difference(0, 1).interval().width > 0.03
    assert recovery(data, 1, 0).interval.width > 0.03
    gap = data.contrast({0: 1.0, 1: -1.0, 2: -1.0, 3: 1.0})
    assert gap.interval().width > 0.03
    assert gap.point == pytest.approx(lost / 60)


def test_win_or_tie_rate_is_a_macro_average() -> None:
    assert win_or_tie_rate(resampled(EASY, HARD), 1, 0) == pytest.approx((0.8 + 1.0) / 2)


def test_weights_are_equal_per_benchmark_and_split_over_contexts(small_run: Path) -> None:
    cells = [cell for cell in load_result_tensor([small_run]).cells if cell.protocol == "generation"]
    assert [cell.benchmark.name for cell in cells] == ["arc_easy", "piqa", "gsm8k", "niah", "niah"]
    assert weights_of(cells) == pytest.approx([0.25, 0.25, 0.25, 0.125, 0.125])


def test_group_counts_as_one_benchmark(tmp_path: Path) -> None:
    benchmarks = [
        SyntheticBenchmark("a", "A", "knowledge", 20),
        SyntheticBenchmark("l1", "L1", "recall", 20, group="longbench"),
        SyntheticBenchmark("l2", "L2", "recall", 20, group="longbench"),
    ]
    run = make_run(tmp_path, benchmarks, [SyntheticCheckpoint("t", lambda b, p, c: 0.6, "teacher")])
    cells = [cell for cell in load_result_tensor([run]).cells if cell.protocol == "generation"]
    assert weights_of(cells) == pytest.approx([0.5, 0.25, 0.25])
    part = {"l1": 3.0, "l2": 1.0}
    stated = [
        replace(cell, benchmark=replace(cell.benchmark, group_weight=part.get(cell.benchmark.name)))
        for cell in cells
    ]
    assert weights_of(stated) == pytest.approx([0.5, 0.375, 0.125])


def test_averages_and_ranks(report: Any) -> None:
    strong, weak = (report.average(i, "generation") for i in (1, 2))
    assert (strong.rank, strong.rank_low, strong.rank_high) == (1, 1, 1)
    assert (weak.rank, weak.rank_low, weak.rank_high) == (2, 2, 2)
    assert weak.benchmarks == ("arc_easy", "piqa", "gsm8k", "niah")
    scores = {(r.benchmark, r.context): r.score.point for r in report.scores if r.checkpoint == 2}
    macro = (
        report.tensor.find("arc_easy", "generation")[0].scores()[2].mean()
        + report.tensor.find("piqa", "generation")[0].scores()[2].mean()
        + scores["gsm8k", None]
        + (scores["niah", 512] + scores["niah", 1024]) / 2
    ) / 4
    assert weak.score.point == pytest.approx(macro)
    assert report.average(0, "generation").recovery.interval is None


def test_the_detectable_effect_of_a_benchmark_is_that_of_its_discordant_documents(report: Any) -> None:
    row = next(r for r in report.scores if (r.checkpoint, r.benchmark) == (2, "arc_easy"))
    assert 0 < row.wins < row.losses
    assert row.mde == paired_minimum_detectable_effect(row.wins + row.losses, row.documents)


def test_the_deviation_of_sampling_seeds_is_a_square_root(tmp_path: Path) -> None:
    benchmark = SyntheticBenchmark(
        "a", "A", "knowledge", 80, protocols=("generation",), seeds=(0, 1, 2), seed_deviation=1.0
    )
    teacher = SyntheticCheckpoint("t", lambda *_: 0.6, "teacher")
    report = build_report([make_run(tmp_path, [benchmark], [teacher])])
    (row,), (cell,) = report.scores, report.tensor.cells
    assert 0 < row.seed_deviation**2 == pytest.approx(seed_effect(cell.values[0].T).between_seeds)


def test_equal_students_share_a_rank(tmp_path: Path) -> None:
    def truth(benchmark: str, protocol: str, context: int | None) -> float:
        return 0.6

    answerers = [
        SyntheticCheckpoint("t", truth, "teacher"),
        SyntheticCheckpoint("a", truth),
        SyntheticCheckpoint("b", truth),
    ]
    run = make_run(tmp_path, [SyntheticBenchmark("f", "F", "knowledge", 100)], answerers, rho=1.0)
    rows = [row for row in build_report([run]).averages if row.scope == "all" and row.checkpoint]
    assert [(row.rank, row.rank_low, row.rank_high) for row in rows] == [(1, 1, 2)] * 4


def test_perplexity_is_not_part_of_recovery(report: Any) -> None:
    row = next(r for r in report.scores if r.benchmark == "wikitext" and r.checkpoint == 2)
    assert row.recovery.interval is None
    assert 0.3 < row.drop.low < row.drop.point < row.drop.high < 0.5
    assert all("wikitext" not in average.benchmarks for average in report.averages)
    cell = report.tensor.find("wikitext", "loglikelihood")[0]
    levels = cell.scores().sum(axis=1) / cell.units.mean(axis=1).sum(axis=1)
    assert row.drop.point == pytest.approx(levels[2] - levels[0])


def test_gap_uses_common_documents(report: Any) -> None:
    row = report.gap(2, "arc_easy")
    by_loglikelihood = report.tensor.find("arc_easy", "loglikelihood")[0]
    generated = report.tensor.find("arc_easy", "generation")[0]
    drops = [cell.scores()[0].mean() - cell.scores()[2].mean() for cell in (by_loglikelihood, generated)]
    assert row.gap.point == pytest.approx(drops[1] - drops[0])
    assert row.gap.low > 0
    right = np.array(row.right["student"])
    assert right.sum() == 400
    assert right[0] == (by_loglikelihood.scores()[2] * generated.scores()[2]).sum()
    assert right[:2].sum() / 400 == pytest.approx(row.loglikelihood["student"])


def test_explained_is_the_change_without_failed_documents(report: Any) -> None:
    row = report.gap(2, "arc_easy")
    by_loglikelihood = report.tensor.find("arc_easy", "loglikelihood")[0].scores()
    cell = report.tensor.find("arc_easy", "generation")[0]
    kept = (cell.outcomes[[0, 2], 0] != OUTCOMES.index("looped")).all(axis=0)
    without = (cell.scores()[0] - cell.scores()[2] - by_loglikelihood[0] + by_loglikelihood[2])[kept].mean()
    assert row.explained["looped"] == pytest.approx(row.gap.point - without)
    assert 0 < row.explained["looped"] < row.explained["any"]
    assert report.gap(1, "arc_easy").explained["looped"] == 0


def test_inversions(tmp_path: Path) -> None:
    def truth(by_loglikelihood: float, generated: float) -> Any:
        return lambda benchmark, protocol, context: (
            by_loglikelihood if protocol == "loglikelihood" else generated
        )

    answerers = [
        SyntheticCheckpoint("t", truth(0.9, 0.9), "teacher"),
        SyntheticCheckpoint("reader", truth(0.8, 0.3)),
        SyntheticCheckpoint("writer", truth(0.6, 0.7)),
    ]
    run = make_run(tmp_path, [SyntheticBenchmark("f", "F", "knowledge", 400)], answerers)
    agreement = build_report([run]).agreement
    assert agreement.tau == -1
    assert [(i.loglikelihood_above, i.generation_above, i.proven) for i in agreement.inversions] == [
        (1, 2, True)
    ]


def test_replicates_give_seed_deviation(tmp_path: Path) -> None:
    def lineage(seed: int) -> dict[str, Any]:
        return {
            "recipe": {"name": "r", "hash": f"h{seed}"},
            "seed": seed,
            "mixers": ["gla"] * 4,
            "tokens": 10,
        }

    answerers = [SyntheticCheckpoint("t", lambda b, p, c: 0.8, "teacher")]
    answerers += [
        SyntheticCheckpoint(f"gla-{s}", lambda b, p, c, s=s: 0.6 + 0.02 * s, lineage=lineage(s))
        for s in range(3)
    ]
    run = make_run(tmp_path, [SyntheticBenchmark("f", "F", "knowledge", 300)], answerers)
    report = build_report([run])
    groups = report.replicates
    assert [(group.checkpoints, group.protocol, group.scope) for group in groups] == [
        ((1, 2, 3), "loglikelihood", "informative"),
        ((1, 2, 3), "generation", "informative"),
    ]
    assert all(0 < group.deviation < 0.1 for group in groups)
    assert "over the informative benchmarks" in replicate_sentences(report, "loglikelihood", "informative")[0]
    assert replicate_sentences(report, "loglikelihood", "all") == []
    # A benchmark that nobody has finished leaves the informative ones complete.
    averages = [replace(row, missing=("g",)) if row.scope == "all" else row for row in report.averages]
    assert replicates_of(report.tensor, averages) == list(groups)
    assert replicates_of(report.tensor, [replace(row, missing=("f",)) for row in report.averages]) == []


def test_variants_of_one_name_that_train_differently_are_no_replicates(tmp_path: Path) -> None:
    def lineage(seed: int, rate: float) -> dict[str, Any]:
        stage = {"name": "kd", "objective": "kd", "tokens": 10, "lr": rate}
        return {"recipe": {"name": "r"}, "seed": seed, "mixers": ["gla"], "tokens": 10, "stages": [stage]}

    answerers = [SyntheticCheckpoint("t", lambda b, p, c: 0.8, "teacher")]
    answerers += [
        SyntheticCheckpoint(f"gla-{i}", lambda b, p, c: 0.6, lineage=lineage(i, rate))
        for i, rate in enumerate((1e-3, 1e-3, 4e-3))
    ]
    run = make_run(tmp_path, [SyntheticBenchmark("f", "F", "knowledge", 300)], answerers)
    assert {group.checkpoints for group in build_report([run]).replicates} == {(1, 2)}


def test_run_without_teacher_has_scores_and_a_warning(tmp_path: Path) -> None:
    run = make_run(
        tmp_path,
        [SyntheticBenchmark("f", "F", "knowledge", 50)],
        [SyntheticCheckpoint("alone", lambda b, p, c: 0.5)],
    )
    report = build_report([run])
    assert report.warnings[0].startswith("No teacher")
    assert report.average(0, "loglikelihood").recovery.interval is None
    assert report.gaps == ()


def test_table_5_of_2504_14366_gives_its_avg_and_recov_in_all_rows() -> None:
    table = [f for f in paper_scores() if (f.source, f.table) == ("linearizing_2025", "Table 5")]
    rows = {(figure.scale, figure.model): {} for figure in table}
    for figure in table:
        rows[figure.scale, figure.model][figure.benchmark] = figure.value
    assert len(rows) == 24
    assert [sum(scale == each for scale, _ in rows) for each in ("140M", "360M", "1.7B")] == [8, 8, 8]
    assert sum(row["RECOV."] == 100 for row in rows.values()) == 3
    for (scale, model), row in rows.items():
        tasks = [value for name, value in row.items() if name not in ("AVG.", "RECOV.")]
        assert len(tasks) == 7
        assert sum(tasks) / 7 == pytest.approx(row["AVG."], abs=0.0051)
        teacher = linearizing_scores("teacher", scale)
        mine = linearizing_scores(model, scale) if row["RECOV."] != 100 else teacher
        recovered = macro_recovery([mine[n] for n in teacher], list(teacher.values()))
        assert 100 * recovered == pytest.approx(row["RECOV."], abs=0.0051)
        # The mean of the ratios is another number in every student's row.
        ratios = sum(mine[n] / teacher[n] for n in teacher) / 7
        assert mine == teacher or 100 * ratios != pytest.approx(row["RECOV."], abs=0.0051)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (("linearizing_2025", "Table 5"), "linearizing_2025/table5_zero_shot.csv"),
        (("gendistill_2026", "Table 1"), "gendistill_2026/table1_protocol_gap.csv"),
    ],
)
def test_shipped_figures_are_those_of_the_papers(ours: tuple[str, str], theirs: str) -> None:
    path = Path(__file__).parents[4] / "shared" / "papers" / theirs
    if not path.exists():
        pytest.skip("the papers' tables are not next to this checkout")
    with path.open() as file:
        printed = sorted(
            (r["model"], r["benchmark"], float(r["value"])) for r in csv.DictReader(file) if r["value"]
        )
    shipped = sorted((f.model, f.benchmark, f.value) for f in paper_scores() if (f.source, f.table) == ours)
    assert shipped == printed


def test_table_1_of_2603_26556_gives_its_drops_and_gap() -> None:
    def scores(role: str, protocol: str) -> list[float]:
        four = ("ARC-E", "ARC-C", "HellaSwag", "WinoGrande")
        found = {
            f.benchmark: f.value
            for f in paper_scores()
            if (f.source, f.table, f.role, f.protocol) == ("gendistill_2026", "Table 1", role, protocol)
        }
        return [found[name] for name in four]

    student, teacher = (
        (scores(role, "loglikelihood"), scores(role, "generation")) for role in ("student", "teacher")
    )
    by_loglikelihood, generated, gap = macro_gap(student, teacher)
    assert (round(by_loglikelihood, 1), round(generated, 1), round(gap, 1)) == (0.2, 20.8, 20.6)


def test_references_are_cited_and_scales_are_near() -> None:
    for figure in paper_scores():
        assert figure.citation == f"{CITATIONS[figure.source]}, {figure.table}"
    assert nearest_scale(134_515_008) == "140M"
    assert nearest_scale(1_711_376_384) == "1.7B"
    assert nearest_scale(2_000_000) is None
    assert nearest_scale(None) is None
    with pytest.raises(ValueError, match="2 student scores"):
        macro_recovery([1.0, 2.0], [1.0])


def test_recovery_is_compared_with_the_paper(tmp_path: Path) -> None:
    answerers = [
        SyntheticCheckpoint("t", lambda b, p, c: 0.7, "teacher"),
        SyntheticCheckpoint("gdn", lambda b, p, c: 0.6, lineage={"mixers": ["gated_deltanet"] * 30}),
        SyntheticCheckpoint("hybrid", lambda b, p, c: 0.6, lineage={"mixers": ["gla"] * 29 + ["softmax"]}),
    ]
    benchmarks = [
        SyntheticBenchmark("arc_easy", "ARC-Easy", "knowledge", 100),
        SyntheticBenchmark("piqa", "PIQA", "common_sense", 100, chance=0.5),
        SyntheticBenchmark("mine", "Mine", "knowledge", 100),
    ]
    rows = build_report([make_run(tmp_path, benchmarks, answerers)]).of(paper_comparison)
    assert [(row.checkpoint, row.model, row.scale, row.benchmarks) for row in rows] == [
        (1, "Gated DeltaNet", "140M", ("ARC-E", "PIQA")),
        # The paper has no hybrids; its figures are on the same benchmarks.
        (2, None, "140M", ("ARC-E", "PIQA")),
    ]
    printed = linearizing_scores("Gated DeltaNet", "140M"), linearizing_scores("teacher", "140M")
    expected = sum(printed[0][n] for n in ("ARC-E", "PIQA")) / sum(printed[1][n] for n in ("ARC-E", "PIQA"))
    assert rows[0].paper_recovery == pytest.approx(expected)
