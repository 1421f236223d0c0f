"""Which students share a curve of recovery by tokens or by softmax layers."""

import json

import pytest

from evalsuite.reports.figures.figure import Figure
from evalsuite.reports.measures.layers import LAYERS, layer_charts
from evalsuite.reports.measures.scaling import scaling_views
from evalsuite.reports.report import Report, build_report
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run

PURE, WINDOWED = ["kda"] * 4, ["kda", "sliding_window"] * 2
STUDENTS: dict[str, tuple[str, int, list[str]]] = {
    "pure-8m": ("r.tokens-8m", 8, PURE),
    "pure-30m": ("r", 30, PURE),
    "native-8m": ("r.tokens-8m-native", 8, PURE),
    "hybrid-8m": ("r.tokens-8m-hybrid", 8, ["softmax", *PURE[1:]]),
    "other-8m": ("r.tokens-8m-other", 8, [*PURE[1:], "softmax"]),
    "hybrid-30m": ("r.hybrid", 30, ["softmax", *PURE[1:]]),
    "windows-8m": ("r.tokens-8m-windows", 8, WINDOWED),
}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Students of two budgets, one of whose benchmarks nobody has answered."""
    students = [
        SyntheticCheckpoint(
            label,
            lambda *_, tokens=tokens: 0.4 + tokens / 200,
            lineage={
                "recipe": {"name": recipe, "hash": recipe},
                "seed": 0,
                "mixers": mixers,
                "windows": {"sliding_window": 256} if "sliding_window" in mixers else {},
                "total_tokens": tokens * 10**6,
                "complete": True,
            },
        )
        for label, (recipe, tokens, mixers) in STUDENTS.items()
    ]
    run = make_run(
        tmp_path_factory.mktemp("curves") / "run",
        [
            SyntheticBenchmark(name, name.upper(), "knowledge", 400, protocols=("loglikelihood",))
            for name in ("a", "b")
        ],
        [SyntheticCheckpoint("t", lambda *_: 0.8, "teacher"), *students],
    )
    for path in (run / "scores").glob("b.*"):
        path.unlink()
    return build_report([run])


def curves_of(figures: list[Figure]) -> dict[str, list[str]]:
    """Legend entry → labels of the curve's students."""
    (chart,) = figures
    return {
        trace["name"]: [label.partition(":")[0] for label in trace["hovertext"]]
        for trace in json.loads(chart.data)["data"]
        if trace.get("hovertext")
    }


def test_runs_that_differ_in_their_budget_alone_share_a_curve(report: Report) -> None:
    assert all(report.average(i, "loglikelihood").missing for i in report.students())  # type: ignore[union-attr]
    assert curves_of(scaling_views(report)) == {
        "KDA": ["pure-8m", "pure-30m"],
        "1 × softmax + 3 × KDA": ["hybrid-8m", "hybrid-30m"],
    }


def test_hybrids_of_other_layers_or_budgets_have_curves_of_their_own(report: Report) -> None:
    """Each begins at the pure student of its budget: not at one with windows, nor at a variant of it."""
    assert curves_of(layer_charts(report)) == {
        "KDA · layers 0, 8M tokens": ["pure-8m", "hybrid-8m"],
        "KDA · layers 3, 8M tokens": ["pure-8m", "other-8m"],
        "KDA · layers 0, 30M tokens": ["pure-30m", "hybrid-30m"],
    }


def test_layers_are_described_by_their_mixers(report: Report) -> None:
    about = {row["label"]: row["mixers"] for row in LAYERS.cells(report)}
    assert about["windows-8m"] == "2 × KDA + 2 × sliding window (256)"
    assert about["hybrid-8m"] == "1 × softmax + 3 × KDA"
