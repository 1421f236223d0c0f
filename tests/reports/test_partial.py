"""What a report says of students that answered less than others, and of teachers with little to lose."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from evalsuite.reports.comparison import compare
from evalsuite.reports.records import records_path
from evalsuite.reports.report import Report
from evalsuite.reports.words import headline

WRITTEN = ("arc_easy", "piqa", "gsm8k")


@pytest.fixture(scope="module")
def zoo(dice: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Path]:
    """A teacher that writes worse than guessing, its student, two variants that only GSM8K was asked of in
    writing, and a checkpoint along the way."""

    def student(label: str, recipe: str, score: float, written: float = 0.1, **lineage: object) -> object:
        facts = {"recipe": {"name": recipe, "hash": recipe}, "seed": 0, "mixers": ["gla"] * 2, "tokens": 100}
        return dice.Answerer(
            label,
            lambda b, p, c: score if p == "loglikelihood" else written if b != "gsm8k" else 0.5 * score,
            lineage=facts | lineage,
        )

    run = dice.make_run(
        tmp_path_factory.mktemp("zoo") / "run",
        [
            dice.Asked("arc_easy", "ARC-Easy", "knowledge", 400),
            dice.Asked("piqa", "PIQA", "common_sense", 400, chance=0.5),
            dice.Asked("gsm8k", "GSM8K", "reasoning", 400, chance=0.0, protocols=("generation",)),
        ],
        [
            dice.Answerer(
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
    for name in WRITTEN[:2]:
        path = records_path(run, name, "generation")
        rows = path.read_text().splitlines(True)
        path.write_text(
            "".join(r for r in rows if not any(f'"checkpoint": "{w}"' in r for w in ("heads", "ce")))
        )
    out = tmp_path_factory.mktemp("out")
    return compare([run], out).report, out


def test_students_that_lack_the_same_are_named_together(zoo: tuple[Report, Path]) -> None:
    said = [warning for warning in zoo[0].warnings if "average" in warning]
    assert said == [
        "'heads', 'ce' answered only gsm8k under generation: their averages are over these and are not "
        "ranked."
    ]


def test_checkpoints_along_the_way_are_not_ranked(zoo: tuple[Report, Path]) -> None:
    report, _ = zoo
    ranks = {
        report.subjects[row.subject].label: row.rank
        for row in report.averages
        if (row.protocol, row.scope) == ("loglikelihood", "all")
    }
    assert ranks == {"t": None, "gla": 1, "half": None, "heads": 3, "ce": 2, "retnet": 4}
    assert {report.subjects[row.subject].label for row in report.published} == set(ranks) - {"t", "half"}


def test_recoveries_over_other_benchmarks_do_not_stand_side_by_side(zoo: tuple[Report, Path]) -> None:
    report, out = zoo
    lines = (out / "report.md").read_text().splitlines()
    row = [line for line in lines if line.startswith("| **heads**")][-1]
    cells = [cell.strip() for cell in row.split("|")]
    written, difference = cells[-3:-1]
    # Its difference is over what both wrote.
    assert written == "–"
    assert difference.startswith("−")
    assert "A dash stands for a recovery over fewer benchmarks" in (out / "index.html").read_text()
    plain = report.average(1, "generation")
    assert plain is not None
    assert plain.benchmarks == WRITTEN


def test_a_teacher_below_chance_has_little_to_lose(zoo: tuple[Report, Path]) -> None:
    report, _ = zoo
    row = report.gap(1)
    assert row is not None
    assert row.chance == pytest.approx(0.375)
    assert row.floored
    assert any("'t' itself scores" in w and "where guessing would score 37.5 %" in w for w in report.warnings)
    # Of GSM8K it keeps what it keeps; what was asked both ways says nothing.
    ranked = report.average(1, "loglikelihood")
    written = report.average(1, "generation", "reasoning")
    assert ranked is not None
    assert written is not None
    assert headline(report) == (
        f"gla recovers {100 * ranked.recovery.point:.1f} % of its teacher when its answers are ranked; "
        f"when it writes, it keeps least of reasoning: {100 * written.recovery.point:.1f} %."
    )


def test_who_changes_places_is_proven_where_it_is_said(zoo: tuple[Report, Path]) -> None:
    report, out = zoo
    label = {i: subject.label for i, subject in enumerate(report.subjects)}
    assert report.agreement is not None
    changes = {(label[i.ranked_above], label[i.written_above]): i for i in report.agreement.inversions}
    # Over everything, with GSM8K, gla is proven better both ways. What was asked both ways proves no change.
    assert not changes["gla", "retnet"].proven
    assert report.over_all is not None
    assert [label[i] for i in report.over_all.subjects] == ["gla", "retnet"]
    assert report.over_all.inversions == ()
    page = (out / "index.html").read_text()
    assert "Recovery over everything that was asked under each protocol." in page


def test_a_student_above_its_teacher_is_no_headline(dice: SimpleNamespace, tmp_path: Path) -> None:
    run = dice.make_run(
        tmp_path / "run",
        [dice.Asked("piqa", "PIQA", "common_sense", 400, protocols=("loglikelihood",))],
        [
            dice.Answerer("t", lambda b, p, c: 0.5, "teacher"),
            dice.Answerer("keeps", lambda b, p, c: 0.47),
            dice.Answerer("learns", lambda b, p, c: 0.7),
        ],
        rho=0.9,
    )
    report = compare([run], tmp_path / "out").report
    assert headline(report).startswith("keeps recovers")
    said = "'learns' scores above its teacher under loglikelihood"
    assert any(warning.startswith(said) for warning in report.warnings)


def test_gains_that_make_up_for_losses_are_named(dice: SimpleNamespace, tmp_path: Path) -> None:
    benchmarks = [
        dice.Asked(name, name.upper(), "knowledge", 400, protocols=("loglikelihood",))
        for name in ("a", "b", "c")
    ]
    scores = {"a": 0.7, "b": 0.3, "c": 0.5}
    run = dice.make_run(
        tmp_path / "run",
        benchmarks,
        [
            dice.Answerer("t", lambda b, p, c: 0.5, "teacher"),
            dice.Answerer("trades", lambda b, p, c: scores[b]),
            dice.Answerer("keeps", lambda b, p, c: 0.48),
        ],
        rho=0.9,
    )
    said = [
        each for each in compare([run], tmp_path / "out").report.warnings if "by more than chance" in each
    ]
    assert said == [
        "Above their teacher under loglikelihood, by more than chance: 1 student in A. Recovery sets such "
        "gains against what was lost elsewhere."
    ]
