"""Variants of a recipe: who is compared with whom, whether the protocols rank them alike, and loss curves."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import kendalltau, t

from evalsuite.foundation import DataError
from evalsuite.reports import compare
from evalsuite.reports.measures.ablations import ablations, sentences
from evalsuite.reports.measures.layers import layer_charts
from evalsuite.reports.measures.pairs import replicate_sentences
from evalsuite.reports.measures.training import loss_curves, training_views
from evalsuite.reports.records.loss_curves import read_loss_curves
from evalsuite.reports.report import Report
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run

LOGLIKELIHOOD = {"tune-kd-full": 0.9, "tune-kd-part": 0.8, "tune-sft-full": 0.7, "tune-sft-part": 0.6}
GENERATION = {"tune-kd-full": 0.5, "tune-kd-part": 0.8, "tune-sft-full": 0.3, "tune-sft-part": 0.65}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Path, Path]:
    """A plain recipe with three seeds and defects, and an instruction stage in four forms."""

    def student(label: str, recipe: str, loglikelihood: float, generated: float = 0.5, **lineage: Any) -> Any:
        facts = {"recipe": {"name": recipe, "hash": recipe}, "seed": 0, "mixers": ["gla", "gla"]}

        def truth(benchmark: str, protocol: str, context: int | None) -> float:
            return 0.9 * (loglikelihood if protocol == "loglikelihood" else generated)

        return SyntheticCheckpoint(label, truth, lineage={**facts, "tokens": 100, **lineage})

    students = [
        student("gla", "plain", 0.9, seed=3),
        student("gla-1", "plain", 0.8, seed=4),
        student("gla-half", "plain", 0.5, complete=False, seed=1),
        student("retnet", "plain", 0.9, mixers=["retnet", "retnet"]),
        student("heads", "plain.wrong-heads", 0.5, seed=3),
        student("heads-1", "plain.wrong-heads", 0.55, seed=4),
        student("heads-2", "plain.wrong-heads", 0.2, seed=5),
        student("ce", "plain.ce-and-kl", 0.7),
        student("ce-long", "plain.ce-and-kl-times-length", 0.6),
        student("alone", "other", 0.6),
        *(
            student(name, name.replace("-", ".", 1), LOGLIKELIHOOD[name], GENERATION[name])
            for name in LOGLIKELIHOOD
        ),
    ]
    benchmarks = [
        SyntheticBenchmark("arc_easy", "ARC-Easy", "knowledge", 200),
        SyntheticBenchmark("piqa", "PIQA", "common_sense", 200, chance=0.5),
    ]
    run = tmp_path_factory.mktemp("run")
    make_run(
        run,
        benchmarks,
        [SyntheticCheckpoint("t", lambda b, p, c: 0.9, "teacher"), *students],
        rho=0.9,
    )
    rows = [
        {"stage": stage, "tokens": 512 * (step + 1), "loss": 2 / (step + 1), "kl": 1}
        for stage in ("mixer", "kd")
        for step in range(200)
    ]
    (run / "training").mkdir()
    for label in ("gla", "retnet"):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (run / "training" / f"{label}.jsonl").write_text(text)
    out = tmp_path_factory.mktemp("out")
    return compare([run], out).report, run, out


def test_variant_is_compared_with_its_reference(made: tuple[Report, Path, Path]) -> None:
    report, _, _ = made
    label = {i: checkpoint.label for i, checkpoint in enumerate(report.checkpoints)}
    groups = {each.base: each for each in report.of(ablations)}
    assert set(groups) == {"plain", "tune"}
    members = {label[m.checkpoint]: m for m in groups["plain"].members}
    partners = {name: None if m.partner is None else label[m.partner] for name, m in members.items()}
    assert partners == {"gla": None, "heads": "gla", "ce": "gla", "ce-long": "ce"}
    pair = next(
        row
        for row in report.pairs
        if {label[row.first], label[row.second]} == {"gla", "heads"} and row.protocol == "loglikelihood"
    )
    difference = members["heads"].differences["loglikelihood"]
    assert difference.point == pytest.approx(-abs(pair.difference.point))
    assert difference.low < difference.point < difference.high
    # The runs of each recipe differ as much as the two recipes.
    assert not members["heads"].proven["loglikelihood"]
    assert all(member.partner is None for member in groups["tune"].members)


def test_differences_over_common_seeds(made: tuple[Report, Path, Path]) -> None:
    report, _, out = made
    at = {checkpoint.label: i for i, checkpoint in enumerate(report.checkpoints)}
    (plain,) = [each for each in report.of(ablations) if each.base == "plain"]
    members = {member.checkpoint: member for member in plain.members}
    assert members.keys() == {at[name] for name in ("gla", "heads", "ce", "ce-long")}
    assert not members[at["ce"]].repeats
    repeats = members[at["heads"]].repeats["loglikelihood"]
    assert repeats.seeds == (3, 4)
    expected = []
    for first, second in (("gla", "heads"), ("gla-1", "heads-1")):
        (row,) = [
            row
            for row in report.pairs
            if (row.first, row.second) == (at[first], at[second]) and row.protocol == "loglikelihood"
        ]
        expected.append(-row.difference.point)
    assert repeats.differences == pytest.approx(expected)
    low, high = t.interval(0.95, 1, np.mean(expected), np.std(expected, ddof=1) / np.sqrt(2))
    assert (repeats.mean.low, repeats.mean.high) == pytest.approx((low, high))
    for text in ((out / "index.html").read_text(), (out / "report.md").read_text()):
        assert "heads − gla with seeds 3, 4, in points: " in text


def test_agreement_of_protocols_on_variants(made: tuple[Report, Path, Path]) -> None:
    report, _, out = made
    (tune,) = [each for each in report.of(ablations) if each.base == "tune"]
    names = [report.checkpoints[i].label for i in tune.both]
    assert set(names) == set(LOGLIKELIHOOD)
    expected = kendalltau([LOGLIKELIHOOD[n] for n in names], [GENERATION[n] for n in names]).statistic
    assert tune.tau == pytest.approx(expected)
    page = (out / "index.html").read_text()
    order = "tune-kd-full, tune-kd-part, tune-sft-full, tune-sft-part under log-likelihood and "
    assert f"{order}tune-kd-part, tune-sft-part, tune-kd-full, tune-sft-full under generation" in page
    markdown = (out / "report.md").read_text()
    assert "#### tune" in markdown
    assert "| **heads** | gla |" in markdown


def test_of_many_variants_the_first_is_named(
    made: tuple[Report, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sentences, "LISTED", 3)
    (tune,) = (each for each in made[0].of(ablations) if each.base == "tune")
    sentence = sentences.ablation_sentence(made[0], tune)
    first = "the first of 4 is tune-kd-full under log-likelihood and tune-kd-part under generation"
    assert sentence.startswith(f"On documents evaluated under both protocols, {first} (Kendall τ")
    assert "tune-sft" not in sentence


def test_loss_charts_are_split_by_objective(tmp_path: Path) -> None:
    def student(label: str, objective: str) -> Any:
        lineage = {"stages": [{"name": "tune", "objective": objective, "tokens": 100}]}
        return SyntheticCheckpoint(label, lambda b, p, c: 0.6, lineage=lineage)

    students = [student("soft", "kd"), student("hard", "sft")]
    teacher = SyntheticCheckpoint("t", lambda b, p, c: 0.7, "teacher")
    run = make_run(
        tmp_path / "run",
        [SyntheticBenchmark("piqa", "PIQA", "common_sense", 50)],
        [teacher, *students],
    )
    (run / "training").mkdir()
    for label in ("soft", "hard", "lost"):
        rows = [{"stage": "tune", "tokens": 10 * step, "loss": 1.0} for step in range(1, 41)]
        (run / "training" / f"{label}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    titles = [(view.title, view.names) for view in training_views(compare([run], tmp_path / "out").report)]
    assert titles == [
        ("Loss in stage 'tune', sft", ("hard",)),
        ("Loss in stage 'tune', unknown objective", ("lost",)),
        ("Loss in stage 'tune', kd", ("soft",)),
    ]


def test_loss_charts_are_split_by_magnitude(tmp_path: Path) -> None:
    answerers = {"t": 0.7, "gla": 0.6}
    run = make_run(tmp_path / "run", [SyntheticBenchmark("piqa", "PIQA", "common_sense", 50)], answerers)
    (run / "training").mkdir()
    for label, loss in (("gla", 3.2), ("kda", 3.1), ("kl-times-length", 250.0), ("kl", 0.2), ("retnet", 3.4)):
        rows = [{"stage": "kd", "tokens": 10 * step, "loss": loss} for step in range(1, 41)]
        (run / "training" / f"{label}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    views = training_views(compare([run], tmp_path / "out").report)
    assert [(view.title, view.names) for view in views] == [
        ("Loss in stage 'kd' (1 of 3)", ("gla", "kda", "retnet")),
        ("Loss in stage 'kd' (2 of 3)", ("kl-times-length",)),
        ("Loss in stage 'kd' (3 of 3)", ("kl",)),
    ]
    assert [view.caption.partition(".")[0] for view in views[1:]] == ["kl-times-length", "kl"]


def test_loss_charts_per_stage(made: tuple[Report, Path, Path]) -> None:
    report, run, out = made
    losses = read_loss_curves([run])
    assert [(each.label, each.stage, len(each.values)) for each in losses] == [
        (label, stage, 200) for label in ("gla", "retnet") for stage in ("mixer", "kd")
    ]
    assert report.of(loss_curves) == losses
    page = (out / "index.html").read_text()
    last = np.mean([2 / (step + 1) for step in range(196, 200)])  # The curve starts after 20 of 200 steps.
    rows = [
        f'<tr><th scope="row">{label}</th><td class="r">{last:.4g}</td></tr>' for label in ("gla", "retnet")
    ]
    assert "".join(rows) in page
    (run / "training" / "bad.jsonl").write_text('{"stage": "kd"}\n')
    with pytest.raises(DataError, match=r"bad.jsonl, line 1: not a training step"):
        read_loss_curves([run])


def test_variants_are_not_charted_as_students_without_softmax_layers(tmp_path: Path) -> None:
    def student(label: str, recipe: str, seed: int = 0, last: str = "gla") -> Any:
        lineage = {"recipe": recipe, "seed": seed, "mixers": ["gla", last], "tokens": 100}
        return SyntheticCheckpoint(label, lambda *_: 0.6, lineage=lineage)

    students = [
        student("plain", "r"),
        student("plain-1", "r", 1),
        student("heads", "r.wrong-heads"),
        student("heads-1", "r.wrong-heads", 1),
        student("hybrid", "r.hybrid", last="softmax"),
    ]
    teacher = SyntheticCheckpoint("t", lambda *_: 0.7, "teacher")
    requested = [SyntheticBenchmark("piqa", "PIQA", "common_sense", 50)]
    run = make_run(tmp_path / "run", requested, [teacher, *students])
    charts = layer_charts(compare([run], tmp_path / "out").report)
    drawn = {
        view.title: {each.label for each in students if f"{each.label}: " in view.data} for view in charts
    }
    assert drawn == {
        f"Recovery by number of softmax layers, {how}": {"plain", "plain-1", "hybrid"}
        for how in ("log-likelihood", "generation")
    }


def test_pooled_spread_of_replicates_defines_noise(made: tuple[Report, Path, Path]) -> None:
    report, _, _ = made
    groups = [group for group in report.replicates if group.protocol == "loglikelihood"]
    assert len(groups) == 2
    degrees = sum(len(group.checkpoints) - 1 for group in groups)
    pooled = sum((len(group.checkpoints) - 1) * group.deviation**2 for group in groups) / degrees
    least = 100 * (2 * pooled) ** 0.5 * t.ppf(0.975, degrees)
    (said,) = replicate_sentences(report, "loglikelihood")
    assert "(gla, gla-1" in said
    assert "(heads, heads-1, heads-2). Pooled, a difference between single runs " in said
    assert f"exceeds the noise of training from {least:.1f} points on (t, {degrees} degrees" in said
