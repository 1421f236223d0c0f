"""Every section of the page, parsed from the HTML and compared with its source."""

import csv
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalsuite.foundation import ConfigError
from evalsuite.reports import compare, load_policy
from evalsuite.reports.analysis.result_tensor import load_result_tensor
from evalsuite.reports.measures.agreement import agreement_with_teacher, tolerances
from evalsuite.reports.measures.efficiency import efficiency
from evalsuite.reports.measures.efficiency.comparison import setting, settings
from evalsuite.reports.measures.efficiency.context_charts import efficiency_charts
from evalsuite.reports.measures.leaderboard import leaderboard
from evalsuite.reports.measures.recall import recall
from evalsuite.reports.page.render import render_page
from evalsuite.reports.records.efficiency import read_efficiency
from evalsuite.reports.records.sidecars import Selection, read_selections
from evalsuite.reports.references.papers import linearizing_scores
from evalsuite.reports.report import Report


class Sections(HTMLParser):
    """Text of every section by its id, tables as rows of cells, figures."""

    def __init__(self, page: str) -> None:
        """Parse a page."""
        super().__init__()
        self.text: dict[str, str] = {}
        self.rows: dict[str, list[list[str]]] = {}
        self.figures: dict[str, dict[str, Any]] = {}
        """Section → title of a figure → its specification."""
        self._title: str | None = None
        self._at: list[str] = []
        self._folds: list[bool] = []
        """Of every open `details`: whether it is a section."""
        self._in_cell = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Enter a section, a row, a cell; note a figure."""
        given = dict(attrs)
        is_fold = given.get("class") == "fold"
        if tag == "details":
            self._folds.append(is_fold)
        if tag == "section" or is_fold:
            self._at.append(given.get("id") or "lead")
        if not self._at:
            return
        here = self._at[-1]
        if tag == "tr":
            self.rows.setdefault(here, []).append([])
        if tag in ("td", "th"):
            self._in_cell = True
            if here in self.rows:
                self.rows[here][-1].append("")
        if given.get("class") == "plot":
            self._title = (given.get("aria-label") or "").partition(";")[0]

    def handle_endtag(self, tag: str) -> None:
        """Leave."""
        if (tag == "section" or (tag == "details" and self._folds.pop())) and self._at:
            self._at.pop()
        if tag in ("td", "th"):
            self._in_cell = False

    def handle_data(self, data: str) -> None:
        """Collect text."""
        if not self._at:
            return
        here = self._at[-1]
        if self._title is not None and data.startswith("{"):
            self.figures.setdefault(here, {})[self._title] = json.loads(data)
            self._title = None
            return
        self.text[here] = self.text.get(here, "") + data
        if self._in_cell and self.rows.get(here) and self.rows[here][-1]:
            self.rows[here][-1][-1] += data.strip()

    def row(self, section: str, label: str) -> list[str]:
        """The first row of a section whose first cell begins with a label."""
        return next(row for row in self.rows[section] if row and row[0].startswith(label))


@pytest.fixture(scope="module")
def made(rich_run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Sections]:
    """The report of the rich run and its page."""
    policy = tmp_path_factory.mktemp("policy") / "gate.yaml"
    policy.write_text("schema: 2\nrules: [{metric: recovery, min: 0.9, protocol: generation}]")
    comparison = compare([rich_run], tmp_path_factory.mktemp("page"), policy=load_policy(policy))
    return comparison.report, Sections(comparison.page.read_text())


def test_page_has_every_section(made: tuple[Report, Sections]) -> None:
    _, page = made
    assert set(page.text) >= {
        "gate", "students", "recovery", "retention", "gap", "recall", "papers", "scaling", "layers", "cost",
        "pairs", "lineage", "method",
    }  # fmt: skip


def test_agreement_against_recovery_and_flips(made: tuple[Report, Sections]) -> None:
    report, page = made
    figures = page.figures["retention"]
    (points,) = figures["Agreement against recovery, log-likelihood"]["data"]
    labels = [label.partition(":")[0] for label in points["hovertext"]]
    assert len(labels) == len(report.students())
    index = {s.label: i for i, s in enumerate(report.checkpoints)}
    for label, x, y in zip(labels, points["x"], points["y"], strict=True):
        row = agreement_with_teacher(report, index[label], "loglikelihood", "informative")
        assert y == pytest.approx(100 * row.agreement.point, rel=1e-4)
        average = report.average(index[label], "loglikelihood", "informative")
        assert x == pytest.approx(100 * average.recovery.point, rel=1e-4)
    lost, gained = figures["Flips, generation"]["data"]
    names = figures["Flips, generation"]["layout"]["yaxis"]["ticktext"]
    at = names.index("kda-135m")
    row = agreement_with_teacher(report, index["kda-135m"], "generation", "informative")
    assert (lost["name"], gained["name"]) == ("lost", "gained")
    assert -lost["x"][at] == pytest.approx(100 * row.lost.point, rel=1e-4)
    assert gained["x"][at] == pytest.approx(100 * row.gained.point, rel=1e-4)
    assert lost["x"] == sorted(lost["x"], reverse=True)


def test_tolerance_curves_are_those_of_the_report(made: tuple[Report, Sections]) -> None:
    report, page = made
    panels = [each for title, each in page.figures["retention"].items() if "Tolerance, log-lik" in title]
    index = {s.label: i for i, s in enumerate(report.checkpoints)}
    traces = [trace for panel in panels for trace in panel["data"] if "name" in trace]
    labels = sorted(report.checkpoints[i].label for i in report.students())
    assert sorted(trace["name"] for trace in traces) == labels
    for trace in traces:
        (row,) = (
            row
            for row in report.of(tolerances)
            if (row.checkpoint, row.protocol, row.scope)
            == (index[trace["name"]], "loglikelihood", "informative")
        )
        assert trace["y"] == pytest.approx([100 * share.point for share in row.curve], rel=1e-4)
        assert trace["line"]["shape"] == "hv"


def test_recall_is_three_numbers_at_most(made: tuple[Report, Sections]) -> None:
    report, page = made
    head, *rows = page.rows["recall"][:13]
    assert head == [
        "model",
        "needles, generation, %",
        "recovery, %",
        "LongBench, generation, %",
        "recovery, %",
    ]
    index = [s.label for s in report.checkpoints].index("gla-135m")
    (needles,) = (
        row
        for row in report.of(recall)
        if (row.checkpoint, row.kind, row.context) == (index, "needles", None)
    )
    row = next(row for row in rows if row[0] == "gla-135m")
    assert row[1].startswith(f"{100 * needles.score.point:.1f} (")
    assert row[2].startswith(f"{100 * needles.recovery.point:.1f} (")


def test_needles_are_scores_by_context(made: tuple[Report, Sections], rich_run: Path) -> None:
    report, page = made
    tensor = load_result_tensor([rich_run])
    index = [s.label for s in report.checkpoints].index("kda-135m")
    expected = [
        f"{100 * cell.scores()[cell.present.index(index)].mean():.0f}"
        for cell in tensor.find("niah_single_2", "generation")
    ]
    assert len(expected) == 4
    assert expected in [row[1:] for row in page.rows["recall"] if row[0] == "kda-135m"]
    figure = page.figures["recall"]["S-NIAH-2, generation"]
    position = figure["layout"]["yaxis"]["ticktext"].index("kda-135m")
    assert [f"{100 * z:.0f}" for z in figure["data"][0]["z"][position]] == expected


def test_longbench_is_a_table_of_tasks_with_their_mean(made: tuple[Report, Sections]) -> None:
    report, page = made
    head = next(row for row in page.rows["recall"] if row[-1] == "mean")
    assert head[:3] == ["model", "NarrativeQA", "Qasper"]
    assert head[-1] == "mean"
    index = [s.label for s in report.checkpoints].index("gla-135m")
    scores = [
        r.score.point for r in report.scores if r.checkpoint == index and r.benchmark.startswith("longbench")
    ]
    row = next(row for row in page.rows["recall"] if row[0] == "gla-135m" and len(row) == len(head))
    assert [float(text) for text in row[1:-1]] == pytest.approx([100 * s for s in scores], abs=0.051)
    assert float(row[-1]) == pytest.approx(100 * np.mean(scores), abs=0.051)


def test_comparison_with_the_paper(made: tuple[Report, Sections]) -> None:
    _, page = made
    row = page.row("papers", "gla-360m")
    mine, teacher = linearizing_scores("GLA", "360M"), linearizing_scores("teacher", "360M")
    names = ("ARC-E", "HellaSwag", "PIQA", "WinoGrande")
    paper_recovery = 100 * sum(mine[n] for n in names) / sum(teacher[n] for n in names)
    assert row[3] == f"{paper_recovery:.1f}"
    assert row[-1] == "GLA, 360M"
    # The chance levels of our documents are subtracted from the printed scores.
    chance = {"ARC-E": 25, "HellaSwag": 25, "PIQA": 50, "WinoGrande": 50}
    chance_normalized_recovery = sum(mine[n] - chance[n] for n in names) / sum(
        teacher[n] - chance[n] for n in names
    )
    assert row[5] == f"{100 * chance_normalized_recovery:.1f}"
    assert "arXiv 2504.14366, Table 5" in page.text["papers"]


def test_paper_tables_show_the_printed_scores(made: tuple[Report, Sections]) -> None:
    """Table 3 of 2504.14366 has needles at 512 to 4k; Table 1 of 2603.26556 the protocol gap."""
    _, page = made
    assert (
        "Scores in the paper: What Matters in Linearizing Language Models?, arXiv 2504.14366, Table 3, "
        "generation" in (page.text["papers"])
    )
    head = next(row for row in page.rows["papers"] if "S-NIAH-1 512" in row)
    assert len(head) == 13
    row = next(row for row in page.rows["papers"] if row[0] == "Gated DeltaNet, 1.7B" and len(row) == 13)
    assert row[1:5] == ["99.4", "97.8", "81.8", "29.8"]
    sentence = (
        "drops 0.2 points under log-likelihood and 20.8 under generation on ARC-E, ARC-C, HellaSwag and"
    )
    assert (
        f"{sentence} WinoGrande, a gap of 20.6 (When Perplexity Lies, arXiv 2603.26556, Table 1)"
        in page.text["gap"]
    )


def test_scaling_curves_hold_the_checkpoints_of_one_lineage(made: tuple[Report, Sections]) -> None:
    report, page = made
    assert set(page.figures["scaling"]) == {
        f"Recovery by {what}, {how}"
        for what in ("training tokens", "teacher size")
        for how in ("log-likelihood", "generation")
    }
    tokens = page.figures["scaling"]["Recovery by training tokens, generation"]
    (curve,) = tokens["data"]
    labels = [label.partition(":")[0] for label in curve["hovertext"]]
    assert labels == ["gdn-135m-at-70M", "gdn-135m-at-220M", "gdn-135m"]
    assert curve["x"] == [70_000_000, 220_000_000, 700_000_000]
    index = {s.label: i for i, s in enumerate(report.checkpoints)}
    for label, value, above in zip(labels, curve["y"], curve["error_y"]["array"], strict=True):
        average = report.leading_average(index[label], "generation")
        assert value == pytest.approx(100 * average.recovery.point, rel=1e-4)
        assert value + above == pytest.approx(100 * average.recovery.interval.high, rel=1e-4)
    sizes = page.figures["scaling"]["Recovery by teacher size, log-likelihood"]
    assert [trace["name"] for trace in sizes["data"]] == ["Gated DeltaNet", "GLA"]
    rows = [row for row in page.rows["scaling"] if row[0] == "GLA"]
    assert [row[1] for row in rows] == ["135M", "362M", "135M", "362M"]


def test_layers_importance_stability_and_quality(made: tuple[Report, Sections], rich_run: Path) -> None:
    _, page = made
    figures = page.figures["layers"]
    assert page.row("layers", "gdn-4-ga_s2")[1].count("softmax") == 4
    importance = figures["ga_s2: importance by layer"]
    softmax, linear = importance["data"]
    assert (softmax["name"], softmax["x"]) == ("softmax", [3, 9, 14, 27])
    assert len(linear["x"]) == 26
    assert importance["layout"]["yaxis"]["title"]["text"] == "importance"
    assert "At the end: Jaccard 1.00, backbone 4 of 4, union 4." in page.text["layers"]
    similarity, _ = figures["ga_s2: stability of the selection"]["data"]
    assert similarity["y"][-1] == 1
    assert (
        "stopped early at step 1,900, 31.9M tokens, 57 % fewer than the 74.5M planned" in page.text["layers"]
    )
    probe = figures["S-NIAH-1 at 2k, generation, by number of softmax layers"]
    selection = read_selections([rich_run])[0]
    scores = [each.score for each in selection.quality if each.what.startswith("S-NIAH")]
    curve = next(trace for trace in probe["data"] if trace["name"] == "ga_s2")
    assert curve["x"] == [0, 4, 8, len({*selection.quality[3].layers})]
    assert curve["y"] == pytest.approx([100 * s for s in scores], rel=1e-4)
    ours = figures["Recovery by number of softmax layers, generation"]
    labels = [label.partition(":")[0] for trace in ours["data"] for label in trace["hovertext"]]
    assert labels == ["gdn-135m", "gdn-4-ga_s2", "gdn-8-ga_s2", "gdn-135m", "gdn-4-uniform", "gdn-8-uniform"]


def test_cost_is_the_efficiency_records(made: tuple[Report, Sections], rich_run: Path) -> None:
    _, page = made
    lines = [json.loads(line) for line in (rich_run / "efficiency.jsonl").open()]
    rows = [row for row in page.rows["cost"] if row[0] == "SmolLM2-135M" and len(row) == 11]
    assert len(rows) == 8
    request, batch = rows[6:]
    assert request[1:6] == ["torch", "request", "64k", "1", f"{lines[6]['ttft_ms']['median']:,.1f}"]
    assert request[7] == f"{lines[6]['cache_bytes'] / 2**30:.3g} GiB"
    assert batch[2:5] == ["decode", "64k", "8"]
    assert batch[6] == f"{round(8000 / lines[7]['step_ms']['median']):,}"
    charts = list(page.figures["cost"])
    assert charts[:2] == [f"Recovery against {what}, log-likelihood" for what in ("decode speed", "cache")]
    assert charts[2:] == [
        f"{what} by context"
        for what in (
            "Peak decode throughput",
            "Peak decode throughput relative to the teacher",
            "Decode speed of one sequence",
            "Time to first token",
            "Cache per sequence",
            "Peak memory of one sequence",
            "Energy per generated token",
        )
    ]
    front, points = page.figures["cost"][charts[0]]["data"]
    assert len(points["x"]) == 4
    assert front["y"][-1] == max(points["y"])
    assert front["x"] == sorted(front["x"], reverse=True)


def test_crossovers_are_those_of_the_measurements(made: tuple[Report, Sections]) -> None:
    report, page = made
    student = next(row.label for row in report.of(efficiency) if row.label != "SmolLM2-135M")
    (found,) = (row[1:] for row in page.rows["cost"] if row[0] == student and len(row) == 6)
    # 0.01 T (1 + T / 32768) against 0.015 T: they are equal at T = 16384.
    assert found[0].startswith("from 16,384 (")
    assert found[4].startswith("everywhere")


def test_the_leaderboard_has_cost_at_32k_or_the_longest_context(made: tuple[Report, Sections]) -> None:
    report, _ = made
    rows = list(csv.DictReader(io.StringIO(report.of(leaderboard)[0].csv(report))))
    student = next(row.label for row in report.of(efficiency) if row.label != "SmolLM2-135M")
    found = [row for row in rows if row["label"] == student and row["scope"] == "all"]
    assert found
    for row in found:
        # At 65,536 tokens, the longest: 0.01 T (1 + 2) against 0.015 T.
        assert float(row["prefill_ratio"]) == pytest.approx(2)
        assert float(row["prefill_ratio_low"]) == pytest.approx(2 * 0.99 / 1.01)
        assert float(row["cache_ratio"]) == pytest.approx(92_160 * 65_536 / (30 * 9 * 64 * 64 * 4))
    assert {row["decode_ratio"] for row in rows if row["role"] == "teacher"} == {""}


def test_speeds_of_two_devices_are_separate_figures(rich_run: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in (rich_run / "efficiency.jsonl").open()]
    slow = [
        line | {"device": "2 CPU threads", "step_ms": line["step_ms"] | {"median": 777}} for line in lines[:4]
    ]
    (tmp_path / "efficiency.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [*slow, *lines]))
    measured = read_efficiency([tmp_path])
    assert len(settings(measured)) == 2
    fast, other = settings(measured)
    assert (fast.device, other.device) == ("NVIDIA H200", "2 CPU threads")
    speeds = []
    for where in (fast, other):
        rows = [row for row in measured if setting(row) == where and row.label == lines[0]["label"]]
        speeds += [each for each in efficiency_charts(rows) if each.title.startswith("Decode speed")]
    assert ["1.287" in each.data for each in speeds] == [False, True]
    assert where.device in speeds[1].caption


def test_the_doctor_and_lineage_are_shown(made: tuple[Report, Sections]) -> None:
    report, page = made
    assert "Doctor, 'gdn-135m': chat template: the system prompt is dropped" in page.text["warnings"]
    assert ["gdn-135m", "batch of 8 vs. single", "ok", "same answers"] in page.rows["method"]
    assert page.text["lineage"].count("linearizing-2025") == 11
    teacher = report.checkpoints[0].weights_id
    assert f"HuggingFaceTB/SmolLM2-135M {teacher}" in page.text["lineage"]
    assert ["distil", "kd", "420,000,000"] in page.rows["lineage"]


def test_full_page_is_small_and_has_no_external_links(made: tuple[Report, Sections]) -> None:
    report, _ = made
    page = render_page(report)
    assert len(page.encode()) < 1.5e6
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", page)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": [3, 3]}, "must be unique and at least 0"),
        ({"layers": [-1]}, "must be unique and at least 0"),
        ({"scores": [0.1, 0.2]}, "there are scores for 2 layers"),
        ({"scores": ["high"] * 8}, "'scores.0' = 'high'"),
        (
            {"history": [{"tokens": 9, "layers": [1]}, {"tokens": 3, "layers": [3]}]},
            "its tokens never decrease",
        ),
        ({"history": [{"tokens": 9, "layers": [1]}]}, "the last layers"),
        ({"quality": [{"layers": [3], "what": "x", "score": 55}]}, "'quality.0.score' = 55"),
        ({"selecter": "x"}, "did you mean 'selector'"),
        ({"schema": 1}, "selection schema 1 is not supported"),
    ],
)
def test_a_selection_of_another_form_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    value = {"schema": 2, "selector": "ga_s2", "layers": [3], **changes}
    (tmp_path / "selection.json").write_text(json.dumps(value))
    with pytest.raises(ConfigError, match=r"selection\.json") as caught:
        read_selections([tmp_path])
    assert message in str(caught.value)


def test_the_example_of_the_readme_is_a_selection(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "reports" / "README.md").read_text()
    (tmp_path / "selection.json").write_text(re.search(r"```json\n(.*?)```", text, re.DOTALL).group(1))
    assert read_selections([tmp_path])[0].layers == (1, 3)


def test_the_least_selection_is_enough() -> None:
    found = Selection.model_validate({"schema": 2, "selector": "fixed", "layers": [1, 2]})
    assert (found.layers, found.scores, found.stop) == ((1, 2), (), None)
