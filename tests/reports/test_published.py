"""Ours beside the paper: which students stand in the order, its agreement, and what seeds make a tie."""

from pathlib import Path
from statistics import stdev
from types import SimpleNamespace
from typing import Any

import pytest
from scipy.stats import kendalltau

from evalsuite.reports import compare
from evalsuite.reports.findings import order_sentences
from evalsuite.reports.references import MODELS, linearizing_scores
from evalsuite.reports.report import Report

NAMES = {"arc_easy": "ARC-E", "piqa": "PIQA", "hellaswag": "HellaSwag"}
ABILITY = {
    "gla": 0.97,
    "retnet": 0.93,
    "mlstm": 0.90,
    "kda": 0.85,
    "gated_deltanet": 0.80,
}


@pytest.fixture(scope="module")
def made(dice: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Path]:
    """Five mixers by one recipe, one of them with three seeds, and students outside the order."""

    def student(label: str, mixer: str, scale: float, **lineage: Any) -> Any:
        mixers = ["softmax", mixer] if label == "hybrid" else [mixer, mixer]
        stages = [{"name": "kd", "objective": "kd", "tokens": lineage.get("tokens", 100)}]
        facts = {"recipe": {"name": "r", "hash": "h"}, "seed": 0, "mixers": mixers, "stages": stages}
        return dice.Answerer(
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
        dice.Asked("arc_easy", "ARC-Easy", "knowledge", 1500, protocols=("loglikelihood",)),
        dice.Asked("piqa", "PIQA", "common_sense", 1500, chance=0.5, protocols=("loglikelihood",)),
        dice.Asked("hellaswag", "HellaSwag", "common_sense", 1500, protocols=("loglikelihood",)),
        dice.Asked("mmlu", "MMLU", "knowledge", 300, protocols=("loglikelihood",)),
    ]
    run = dice.make_run(
        tmp_path_factory.mktemp("run"),
        benchmarks,
        [dice.Answerer("teacher", lambda b, p, c: TEACHER[b], "teacher"), *students],
        rho=0.95,
    )
    out = tmp_path_factory.mktemp("out")
    return compare([run], out).report, out


TEACHER = {"arc_easy": 0.9, "piqa": 0.9, "hellaswag": 0.9, "mmlu": 0.3}


def test_the_order_holds_one_finished_student_per_mixer_of_the_main_recipe(made: tuple[Report, Path]) -> None:
    report, _ = made
    (order,) = report.orders
    labels = [report.subjects[i].label for i in order.subjects]
    assert labels == list(ABILITY)
    theirs = {
        mixer: sum(linearizing_scores(MODELS[mixer], "140M")[n] for n in NAMES.values()) for mixer in ABILITY
    }
    expected = kendalltau(list(range(len(labels), 0, -1)), [theirs[label] for label in labels])
    assert order.tau == pytest.approx(expected.statistic)
    assert order.interval is not None
    assert order.interval.low <= order.tau <= order.interval.high
    assert {(report.subjects[a].label, report.subjects[b].label) for a, b in order.inversions} == {
        (a, b) for i, a in enumerate(labels) for b in labels[i + 1 :] if theirs[a] < theirs[b]
    }


def test_seeds_say_what_is_a_tie(made: tuple[Report, Path]) -> None:
    report, _ = made
    (order,) = report.orders
    points = {report.subjects[row.subject].label: row.ours.point or 0.0 for row in report.published}
    seeds = [points[f"gated_deltanet{end}"] for end in ("", "-seed1", "-seed2")]
    assert order.deviation == pytest.approx(stdev(seeds))
    labels = list(ABILITY)
    assert {(report.subjects[a].label, report.subjects[b].label) for a, b in order.ties} == {
        (a, b)
        for i, a in enumerate(labels)
        for b in labels[i + 1 :]
        if abs(points[a] - points[b]) < 2 * stdev(seeds)
    }
    assert 0 < len(order.ties) < 10
    said = " ".join(order_sentences(report, order))
    assert f"standard deviation of {100 * stdev(seeds):.2f} points" in said
    assert "gla and retnet" in said


def test_who_the_paper_does_not_have_stands_on_the_same_benchmarks(made: tuple[Report, Path]) -> None:
    report, out = made
    rows = {report.subjects[row.subject].label: row for row in report.published}
    assert rows["hybrid"].theirs is None
    assert rows["hybrid"].benchmarks == rows["gla"].benchmarks
    assert set(rows["gla"].benchmarks) == set(NAMES.values())
    gla, teacher = linearizing_scores("GLA", "140M"), linearizing_scores("teacher", "140M")
    chance = {"ARC-E": 25, "PIQA": 50, "HellaSwag": 25}
    assert rows["gla"].theirs_centred == pytest.approx(
        sum(gla[n] - c for n, c in chance.items()) / sum(teacher[n] - c for n, c in chance.items())
    )
    lines = (out / "published.csv").read_text().splitlines()
    assert len(lines) == 1 + len(report.published)
    page = (out / "index.html").read_text()
    assert "Order of the 5 mixers here: gla" in page
    markdown = (out / "report.md").read_text()
    assert "### On ARC-E, PIQA, HellaSwag, beside What Matters in Linearizing" in markdown
    assert "Order of the 5 mixers here: gla" in markdown
    assert "3 training runs that differ by seed alone (gated" in markdown
