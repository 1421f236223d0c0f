"""What a report says of students that answered less than others, and of teachers with little to lose."""

from pathlib import Path

import pytest

from evalsuite.reports.comparison import compare
from evalsuite.reports.headline import recovery_sentence
from evalsuite.reports.measures.agreement import agreement_with_teacher
from evalsuite.reports.measures.papers import paper_comparison
from evalsuite.reports.report import Report
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run
from tests.reports.score_edits import edit_rows

GENERATION = ("arc_easy", "piqa", "gsm8k")


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Path]:
    """A teacher that generates worse than guessing, its student, two variants with GSM8K alone under
    generation, and an intermediate checkpoint."""

    def student(label: str, recipe: str, score: float, generated: float = 0.1, **lineage: object) -> object:
        facts = {"recipe": {"name": recipe, "hash": recipe}, "seed": 0, "mixers": ["gla"] * 2, "tokens": 100}
        return SyntheticCheckpoint(
            label,
            lambda b, p, c: score if p == "loglikelihood" else generated if b != "gsm8k" else 0.5 * score,
            lineage=facts | lineage,
        )

    run = make_run(
        tmp_path_factory.mktemp("zoo") / "run",
        [
            SyntheticBenchmark("arc_easy", "ARC-Easy", "knowledge", 200),
            SyntheticBenchmark("piqa", "PIQA", "common_sense", 200, chance=0.5),
            SyntheticBenchmark("gsm8k", "GSM8K", "reasoning", 200, chance=0.0, protocols=("generation",)),
        ],
        [
            SyntheticCheckpoint(
                "t", lambda b, p, c: 0.8 if p == "loglikelihood" else 0.1 if b != "gsm8k" else 0.5, "teacher"
            ),
            student("gla", "plain", 0.7),
            student("retnet", "plain", 0.4, 0.13, mixers=["retnet"] * 2),
            student("half", "plain", 0.75, complete=False, tokens=50),
            student("heads", "plain.wrong-heads", 0.5),
            student("ce", "plain.ce", 0.6),
        ],
        rho=0.9,
    )
    for name in GENERATION[:2]:
        edit_rows(
            run, name, "generation", lambda _, row: None if row["checkpoint"] in ("heads", "ce") else row
        )
    out = tmp_path_factory.mktemp("out")
    return compare([run], out).report, out


def test_markdown_lists_missing_scores_in_the_order_of_the_benchmarks(zoo: tuple[Report, Path]) -> None:
    text = (zoo[1] / "report.md").read_text().partition("### Incomplete, not measured")[2]
    rows = [line.split(" | ")[:2] for line in text.splitlines() if line.startswith("| **")][:4]
    titles = {"arc_easy": "ARC-Easy", "piqa": "PIQA"}
    assert rows == [
        [f"| **{label}**", f"{titles[each.name]}, generation"]
        for each in zoo[0].benchmarks
        if each.name in titles
        for label in ("heads", "ce")
    ]


def test_students_with_same_missing_benchmarks_share_a_warning(zoo: tuple[Report, Path]) -> None:
    said = [warning for warning in zoo[0].warnings if "average" in warning]
    assert said == [
        "'heads', 'ce' have only gsm8k under generation: their averages are over these and have no rank."
    ]


def test_intermediate_checkpoints_are_not_ranked(zoo: tuple[Report, Path]) -> None:
    report, _ = zoo
    ranks = {
        report.checkpoints[row.checkpoint].label: row.rank
        for row in report.averages
        if (row.protocol, row.scope) == ("loglikelihood", "all")
    }
    assert ranks == {"t": None, "gla": 1, "half": None, "heads": 3, "ce": 2, "retnet": 4}
    assert {report.checkpoints[row.checkpoint].label for row in report.of(paper_comparison)} == set(ranks) - {
        "t",
        "half",
    }


def test_recovery_over_fewer_benchmarks_is_a_dash(zoo: tuple[Report, Path]) -> None:
    report, out = zoo
    lines = (out / "report.md").read_text().splitlines()
    row = [line for line in lines if line.startswith("| **heads**")][-1]
    cells = [cell.strip() for cell in row.split("|")]
    generated, difference = cells[-3:-1]
    # The difference is over common benchmarks.
    assert generated == "–"
    assert difference.startswith("−")
    assert "A dash marks a recovery over fewer benchmarks" in (out / "index.html").read_text()
    plain = report.average(1, "generation")
    assert plain is not None
    assert plain.benchmarks == GENERATION


def test_teacher_below_chance_is_a_warning(zoo: tuple[Report, Path]) -> None:
    report, out = zoo
    row = report.gap(1)
    assert row is not None
    assert row.chance == pytest.approx(0.375)
    assert row.teacher_below_chance
    assert any("'t' itself scores" in w and "below the chance level of 37.5 %" in w for w in report.warnings)
    section = (out / "index.html").read_text().partition("minus the drop under log-likelihood.")[2]
    assert "itself scores" in section.partition("</p>")[0]
    # The headline uses GSM8K, because the benchmarks with both protocols are not informative.
    loglikelihood = report.average(1, "loglikelihood", "informative")
    agreement = agreement_with_teacher(report, 1, "loglikelihood", "informative")
    generation = report.average(1, "generation", "reasoning")
    assert loglikelihood is not None
    assert agreement is not None
    assert generation is not None
    assert recovery_sentence(report) == (
        f"gla recovers {100 * loglikelihood.recovery.point:.1f} % of its teacher under log-likelihood and "
        f"makes its choice on {100 * agreement.agreement.point:.1f} % of the documents; "
        f"its lowest recovery under generation is {100 * generation.recovery.point:.1f} % (reasoning)."
    )


def test_rank_changes_are_marked_as_proven(zoo: tuple[Report, Path]) -> None:
    report, out = zoo
    label = {i: checkpoint.label for i, checkpoint in enumerate(report.checkpoints)}
    assert report.agreement is not None
    changes = {
        (label[i.loglikelihood_above], label[i.generation_above]): i for i in report.agreement.inversions
    }
    # With GSM8K, gla is proven better under both protocols; the common documents prove no change.
    assert not changes["gla", "retnet"].proven
    assert report.agreement_over_all is not None
    assert [label[i] for i in report.agreement_over_all.checkpoints] == ["gla", "retnet"]
    assert report.agreement_over_all.inversions == ()
    page = (out / "index.html").read_text()
    assert "Scores are recoveries over all benchmarks of each protocol." in page


def test_student_above_teacher_is_not_the_headline(tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "run",
        [SyntheticBenchmark("piqa", "PIQA", "common_sense", 400, protocols=("loglikelihood",))],
        {"t": 0.6, "keeps": 0.57, "learns": 0.8},
        rho=0.9,
    )
    report = compare([run], tmp_path / "out").report
    assert recovery_sentence(report).startswith("keeps recovers")
    said = "'learns' scores above its teacher under log-likelihood"
    assert any(warning.startswith(said) for warning in report.warnings)


def test_gains_that_offset_losses_are_a_warning(tmp_path: Path) -> None:
    benchmarks = [
        SyntheticBenchmark(name, name.upper(), "knowledge", 400, protocols=("loglikelihood",))
        for name in ("a", "b", "c")
    ]
    scores = {"a": 0.7, "b": 0.3, "c": 0.5}
    run = make_run(
        tmp_path / "run",
        benchmarks,
        [
            SyntheticCheckpoint("t", lambda b, p, c: 0.5, "teacher"),
            SyntheticCheckpoint("trades", lambda b, p, c: scores[b]),
            SyntheticCheckpoint("keeps", lambda b, p, c: 0.48),
        ],
        rho=0.9,
    )
    warnings = compare([run], tmp_path / "out").report.warnings
    assert [each for each in warnings if "Significantly above" in each] == [
        "Significantly above their teacher under log-likelihood: 1 student in A. Recovery offsets such gains "
        "against losses on other benchmarks."
    ]
