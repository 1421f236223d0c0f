"""Every page below docs/extend: its example is short, complete, and has the effect that the page states."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file

from tests.docs.page_code import ROOT, PageCode

EXTEND = ROOT / "docs" / "extend"
MAX_LINES = 30


@pytest.fixture
def page(request: pytest.FixtureRequest, tmp_path: Path) -> PageCode:
    """The page that the test's name ends with."""
    name = request.node.name.removeprefix("test_").replace("_", "-")
    return PageCode(EXTEND / f"{name}.md", tmp_path)


def use_as_demo(page: PageCode, fixture: str) -> None:
    """Put a small run where the pages expect the demo's."""
    shutil.copytree(ROOT / "tests" / "reports" / "fixtures" / fixture, page.folder / "runs" / "demo")


@pytest.mark.parametrize("path", sorted(EXTEND.glob("*.md")), ids=lambda path: path.stem)
def test_examples_are_short(path: Path, tmp_path: Path) -> None:
    if path.stem not in ("index", "plugin", "thread"):
        assert len(PageCode(path, tmp_path).example.splitlines()) <= MAX_LINES


@pytest.mark.long
def test_scorer(page: PageCode) -> None:
    page.run()
    (file,) = (page.folder / "runs" / "sums" / "scores").glob("*.parquet")
    scores = pd.read_parquet(file)
    assert len(scores) == 20
    assert (scores["value.relative_error"] == 0).mean() > 0.9


@pytest.mark.long
def test_benchmark(page: PageCode) -> None:
    page.run()
    (file,) = (page.folder / "runs" / "products" / "scores").glob("*.parquet")
    assert len(pd.read_parquet(file)) == 20


@pytest.mark.long
def test_mixer(page: PageCode) -> None:
    printed = page.run()
    assert "learned_decay: Additive rule with a decay per head that is trained." in printed
    weights = load_file(page.folder / "students" / "learned_decay" / "model.safetensors")
    decays = [weight for name, weight in weights.items() if name.endswith("decay_logit")]
    assert decays
    assert all((decay != decay[0]).any() for decay in decays), "the decay was not trained"
    for check in ("batched", "padded left", "packed", "decode"):
        assert re.search(rf"^{check} .* 0/4$", printed, re.MULTILINE), printed


@pytest.mark.long
def test_objective(page: PageCode) -> None:
    page.run()
    lines = (page.folder / "students" / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    assert steps
    for step in steps:
        assert step["loss"] == pytest.approx((step["forward"] + step["reverse"]) / 2, rel=1e-4)
    assert steps[-1]["loss"] < steps[0]["loss"]


@pytest.mark.long
def test_executor(page: PageCode) -> None:
    page.run()
    run = page.folder / "runs" / "facts"
    environment = json.loads((run / "environment.json").read_text())
    assert environment["config"]["infer"]["executor"] == "fresh"
    assert len(pd.read_parquet(next((run / "scores").glob("*.loglikelihood.*")))) == 10


@pytest.mark.long
def test_engine(page: PageCode) -> None:
    page.run()
    run = page.folder / "runs" / "int8"
    (engine,) = json.loads((run / "run.json").read_text())["engines"].values()
    assert engine["engine"] == "int8_weights"
    assert engine["versions"]["weights"] == "int8 per row"
    rounded = pd.read_parquet(next((run / "scores").glob("*.loglikelihood.*")))
    page.call("evalsuite run facts.yaml --checkpoint pocket --out runs/torch")
    exact = pd.read_parquet(next((page.folder / "runs" / "torch" / "scores").glob("*.loglikelihood.*")))
    first, second = (
        np.array([json.loads(detail)["logprobs"] for detail in scores["detail"]])
        for scores in (rounded, exact)
    )
    assert 1e-4 < abs(first - second).max() < 1.0


@pytest.mark.long
def test_selector(page: PageCode) -> None:
    page.run()
    selection = json.loads((page.folder / "layers.json").read_text())
    by_norm = sorted(range(len(selection["scores"])), key=lambda layer: -selection["scores"][layer])
    assert selection["selector"] == "output_norm"
    assert selection["layers"] == sorted(by_norm[:2])
    config = json.loads((page.folder / "students" / "gla" / "config.json").read_text())
    assert [layer for layer, name in enumerate(config["mixers"]) if name == "softmax"] == selection["layers"]


def test_gate_rule(page: PageCode) -> None:
    use_as_demo(page, "passing")
    page.run()
    (rule,) = json.loads((page.folder / "verdict" / "gate.json").read_text())["results"]
    assert rule["metric"] == "lead_over_chance"
    assert rule["outcome"] == "pass"
    policy = (page.folder / "policy.yaml").read_text()
    (page.folder / "policy.yaml").write_text(policy.replace("min: 10", "min: 99"))
    page.call("python lead_over_chance.py", code=1)


def test_measure(page: PageCode) -> None:
    use_as_demo(page, "failing")
    printed = page.run()
    report = page.folder / "report"
    leaderboard = pd.read_csv(report / "leaderboard.csv")
    assert set(leaderboard.loc[leaderboard["label"] == "student", "training_tokens"]) == {1_000_000}
    for text in (printed, *((report / name).read_text() for name in ("index.html", "report.md"))):
        assert "training tokens" in text
    table = pd.read_csv(report / "training_tokens.csv")
    assert list(table.columns) == ["label", "tokens", "stages"]
    assert dict(zip(table["label"], table["tokens"], strict=True)) == {"student": 1_000_000}
    assert ' id="training_tokens"><summary><h3>Training tokens</h3>' in (report / "index.html").read_text()
    assert json.loads((report / "report.json").read_text())["training_tokens"]


def test_importer(page: PageCode) -> None:
    page.run()
    table = pd.read_csv(page.folder / "report" / "leaderboard.csv")
    row = table[(table["label"] == "small") & (table["scope"] == "all")].iloc[0]
    assert (row["documents"], row["score"], row["win_or_tie_rate"]) == (4, 0.5, 0.75)


def test_exporter(page: PageCode) -> None:
    use_as_demo(page, "failing")
    page.run()
    assert re.fullmatch(
        r"student & \d+\.\d & \d+\.\d \\\\\n", (page.folder / "paper" / "recovery.tex").read_text()
    )
