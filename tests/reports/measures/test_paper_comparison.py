"""Comparison with the paper: ranking of the students, rank correlation, ties by training seeds."""

from pathlib import Path
from statistics import stdev
from typing import Any

import pytest
from scipy.stats import kendalltau

from evalsuite.reports import compare
from evalsuite.reports.measures.papers import orders, paper_comparison
from evalsuite.reports.measures.papers.comparison import order_sentences
from evalsuite.reports.references.papers import MODELS, linearizing_scores
from evalsuite.reports.report import Report
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run

NAMES = {"arc_easy": "ARC-E", "piqa": "PIQA", "hellaswag": "HellaSwag"}
ABILITY = {
    "gla": 0.97,
    "retnet": 0.93,
    "mlstm": 0.90,
    "kda": 0.85,
    "gated_deltanet": 0.80,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Path]:
    """Five mixers of one recipe, one of them with three seeds, and students without a rank."""

    def student(label: str, mixer: str, scale: float, **lineage: Any) -> Any:
        mixers = ["softmax", mixer] if label == "hybrid" else [mixer, mixer]
        stages = [{"name": "kd", "objective": "kd", "tokens": lineage.get("tokens", 100)}]
        facts = {"recipe": {"name": "r", "hash": "h"}, "seed": 0, "mixers": mixers, "stages": stages}
        return SyntheticCheckpoint(
            label, lambda b, p, c: TEACHER[b] * scale, lineage={**facts, "tokens": 100, **lineage}
        )

    students = [student(mixer, mixer, scale) for mixer, scale in ABILITY.items()]
    students += [
        student("gated_deltanet-seed1", "gated_deltanet", 0.86, seed=1),
        student("gated_deltanet-seed2", "gated_deltanet", 0.74, seed=2),
        student("gated_deltanet-50", "gated_deltanet", 0.5, tokens=50, complete=False),
        student("wrong", "retnet", 0.99, recipe={"name": "r.wrong", "hash": "x"}),
        student("hybrid", "gated_deltanet", 0.99, recipe={"name": "r.hybrid", "hash": "y"}),
    ]
    benchmarks = [
        SyntheticBenchmark("arc_easy", "ARC-Easy", "knowledge", 250, protocols=("loglikelihood",)),
        SyntheticBenchmark("piqa", "PIQA", "common_sense", 250, chance=0.5, protocols=("loglikelihood",)),
        SyntheticBenchmark("hellaswag", "HellaSwag", "common_sense", 250, protocols=("loglikelihood",)),
        SyntheticBenchmark("mmlu", "MMLU", "knowledge", 200, protocols=("loglikelihood",)),
    ]
    run = make_run(
        tmp_path_factory.mktemp("run"),
        benchmarks,
        [SyntheticCheckpoint("teacher", lambda b, p, c: TEACHER[b], "teacher"), *students],
        rho=0.95,
    )
    out = tmp_path_factory.mktemp("out")
    return compare([run], out, samples=False).report, out


TEACHER = {"arc_easy": 0.9, "piqa": 0.9, "hellaswag": 0.9, "mmlu": 0.3}


def test_ranking_has_one_finished_student_per_mixer_of_the_main_recipe(made: tuple[Report, Path]) -> None:
    report, _ = made
    (order,) = report.of(orders)
    labels = [report.checkpoints[i].label for i in order.checkpoints]
    assert labels == list(ABILITY)
    theirs = {
        mixer: sum(linearizing_scores(MODELS[mixer], "140M")[n] for n in NAMES.values()) for mixer in ABILITY
    }
    expected = kendalltau(list(range(len(labels), 0, -1)), [theirs[label] for label in labels])
    assert order.tau == pytest.approx(expected.statistic)
    assert order.interval is not None
    assert order.interval.low <= order.tau <= order.interval.high
    assert {(report.checkpoints[a].label, report.checkpoints[b].label) for a, b in order.inversions} == {
        (a, b) for i, a in enumerate(labels) for b in labels[i + 1 :] if theirs[a] < theirs[b]
    }


def test_ties_allow_for_documents_and_training_seeds(made: tuple[Report, Path]) -> None:
    report, _ = made
    (order,) = report.of(orders)
    points = {
        report.checkpoints[row.checkpoint].label: row.recovery.point or 0.0
        for row in report.of(paper_comparison)
    }
    seeds = [points[f"gated_deltanet{end}"] for end in ("", "-seed1", "-seed2")]
    assert order.deviation == pytest.approx(stdev(seeds))
    assert order.degrees == 2
    ties = {frozenset(report.checkpoints[i].label for i in pair) for pair in order.ties}
    # Over documents and runs, with two degrees of freedom, a difference of two standard errors is a tie.
    close = {
        frozenset((a, b))
        for a in ABILITY
        for b in ABILITY
        if a != b and abs(points[a] - points[b]) < 2 * 2**0.5 * stdev(seeds)
    }
    assert close <= ties
    sentences = " ".join(order_sentences(report, order))
    assert f"standard deviation of {100 * stdev(seeds):.2f} points" in sentences
    assert "gla and retnet" in sentences


def test_students_without_counterpart_use_the_same_benchmarks(made: tuple[Report, Path]) -> None:
    report, out = made
    rows = {report.checkpoints[row.checkpoint].label: row for row in report.of(paper_comparison)}
    assert rows["hybrid"].paper_recovery is None
    assert rows["hybrid"].benchmarks == rows["gla"].benchmarks
    assert set(rows["gla"].benchmarks) == set(NAMES.values())
    gla, teacher = linearizing_scores("GLA", "140M"), linearizing_scores("teacher", "140M")
    chance = {"ARC-E": 25, "PIQA": 50, "HellaSwag": 25}
    assert rows["gla"].paper_chance_normalized_recovery == pytest.approx(
        sum(gla[n] - c for n, c in chance.items()) / sum(teacher[n] - c for n, c in chance.items())
    )
    lines = (out / "paper_comparison.csv").read_text().splitlines()
    assert len(lines) == 1 + len(report.of(paper_comparison))
    page = (out / "index.html").read_text()
    assert "Order of the 5 mixers here: gla" in page
    markdown = (out / "report.md").read_text()
    assert "### Comparison with What Matters in Linearizing" in markdown
    assert ", on ARC-E, PIQA, HellaSwag\n" in markdown
    assert "Order of the 5 mixers here: gla" in markdown
    assert "3 training runs that differ only in seed (gated" in markdown
