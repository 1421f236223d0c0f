"""The section on closeness: mixers of one recipe by four measures, and changes of the recipe."""

from pathlib import Path

import pytest

from evalsuite.reports.analysis.bootstrap_sample import Estimate
from evalsuite.reports.blocks import Text, Texts
from evalsuite.reports.measures.agreement import agreement_with_teacher
from evalsuite.reports.measures.closeness import closeness_section
from evalsuite.reports.measures.distances import distances
from evalsuite.reports.measures.distances.rows import DistanceRow
from evalsuite.reports.report import Report, build_report
from evalsuite.reports.statistics.intervals import Interval
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run

LEVELS = {
    ("r", "gated_deltanet", 0): 0.70,
    ("r", "kda", 0): 0.69,
    ("r", "gla", 0): 0.60,
    ("r", "hedgehog", 0): 0.50,
    ("r", "gated_deltanet", 1): 0.71,
    ("r.native", "gla", 0): 0.50,
    ("r.hybrid-4", "gla+softmax", 0): 0.72,
    ("other", "retnet", 0): 0.75,
}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Four mixers of one recipe, a second run, two variants, and a mixer of another recipe."""
    students = [
        SyntheticCheckpoint(
            f"{recipe}-{mixer}-{seed}",
            lambda *_, level=level: level,
            lineage={
                "recipe": {"name": recipe, "hash": f"{recipe} {seed}"},
                "seed": seed,
                "mixers": ["gla"] * 3 + ["softmax"] if "+" in mixer else [mixer] * 4,
                "total_tokens": 1_000_000,
            },
        )
        for (recipe, mixer, seed), level in LEVELS.items()
    ]
    run = make_run(
        tmp_path_factory.mktemp("closeness") / "run",
        [
            SyntheticBenchmark(name, name, "knowledge", 500, protocols=("loglikelihood",))
            for name in ("arc_easy", "hellaswag")
        ],
        [SyntheticCheckpoint("t", lambda *_: 0.75, "teacher"), *students],
    )
    return build_report([run])


def cells_of(report: Report, what: str) -> dict[str, dict[str, str]]:
    """The rows of the table of mixers or of changes, by their names."""
    tables = [block.values for block in closeness_section(report) if isinstance(block, Texts)]
    (table,) = (table for table in tables if table.columns[0] == what)
    return {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}


def sentences_of(report: Report) -> list[str]:
    """The sentences that name the closest mixer by each measure."""
    texts = [block.text for block in closeness_section(report) if isinstance(block, Text)]
    return [text for text in texts if text.startswith("By ")]


def test_mixers_of_the_recipe_with_most_of_them_are_ordered(report: Report) -> None:
    by_mixer = cells_of(report, "mixer")
    assert {*by_mixer} == {"Gated DeltaNet", "KDA", "GLA", "Hedgehog"}
    assert [*by_mixer][2:] == ["GLA", "Hedgehog"]
    label = {report.checkpoints[i].label: i for i in report.students()}
    gla = label["r-gla-0"]
    agreement = agreement_with_teacher(report, gla, "loglikelihood", "informative").recipe_agreement
    assert by_mixer["GLA"]["agreement %"].startswith(f"{100 * agreement.point:.1f} (")
    assert by_mixer["GLA"]["agreement %"].endswith(", 3.")
    capped = report.average(gla, "loglikelihood", "informative").capped_recovery
    assert by_mixer["GLA"]["capped recovery %"].startswith(f"{100 * capped.point:.1f} (")
    assert by_mixer["GLA"]["KL at the answers, nats"] == "–"
    sentences = {each.partition(",")[0]: each for each in sentences_of(report)}
    assert len(sentences) == 3
    assert "Kendall τ with the paper's order" in sentences["By agreement"]
    assert "over 3 mixers" in sentences["By agreement"]
    assert "not told apart from" in sentences["By capped recovery"]


def test_changes_are_differences_from_the_student_that_differs_in_nothing_else(report: Report) -> None:
    rows = cells_of(report, "change")
    assert set(rows) == {"native, GLA", "hybrid-4, GLA"}
    label = {report.checkpoints[i].label: i for i in report.students()}

    def agreement(name: str) -> float:
        row = agreement_with_teacher(report, label[name], "loglikelihood", "informative")
        return 100 * row.recipe_agreement.point

    change = agreement("r.hybrid-4-gla+softmax-0") - agreement("r-gla-0")
    assert change > 0
    assert rows["hybrid-4, GLA"]["agreement, points"].startswith(f"+{change:.1f} (")
    assert rows["native, GLA"]["capped recovery, points"].startswith("−")


def test_one_mixer_has_no_order(tmp_path: Path) -> None:
    lineage = {"recipe": {"name": "r"}, "seed": 0, "mixers": ["kda"], "total_tokens": 1}
    run = make_run(
        tmp_path / "run",
        [SyntheticBenchmark("a", "A", "knowledge", 50, protocols=("loglikelihood",))],
        [
            SyntheticCheckpoint("t", lambda *_: 0.75, "teacher"),
            SyntheticCheckpoint("s", lambda *_: 0.7, lineage=lineage),
        ],
    )
    assert not closeness_section(build_report([run]))


def test_a_mixer_that_is_measured_alone_is_not_the_closest(report: Report) -> None:
    student = next(i for i in report.students() if report.checkpoints[i].label == "r-gla-0")
    row = DistanceRow(
        checkpoint=student,
        is_retrained=False,
        bits=None,
        teacher=0,
        text="answers",
        kind="all",
        group="all",
        documents=2,
        tokens=2,
        kl=Interval(0.5, 0.4, 0.6),
        agreement=Interval(0.5, 0.4, 0.6),
        equivalent_bits=Estimate(None, "no yardstick"),
    )
    changed = report.having(distances, [row])
    assert not any(each.startswith("By KL") for each in sentences_of(changed))
    assert cells_of(changed, "mixer")["GLA"]["KL at the answers, nats"] == "0.500 (0.400 to 0.600)"
