"""The ledger of printed scores: refusals by line, recoveries, bounds, and the published page."""

import csv
from math import inf
from pathlib import Path

import pytest

from evalsuite.foundation import EvalsuiteError
from evalsuite.reports.statistics.intervals import wilson
from evalsuite.reports.studies.ledger.__main__ import main
from evalsuite.reports.studies.ledger.figures import FILE, Figure, read_figures
from evalsuite.reports.studies.ledger.recoveries import LEVEL, ledger_rows

ROOT = Path(__file__).parents[4]
PUBLISHED = ROOT / "reports" / "results" / "ledger"
HEADER = (
    "model,teacher,parameters,source,kind,benchmark,teacher_score,student_score,recovery,documents,part_of\n"
)


def figure(**changes: object) -> Figure:
    values: dict[str, object] = {
        "model": "s", "teacher": "t", "parameters": 135, "source": "card", "kind": "generation",
        "benchmark": "b", "teacher_score": 50, "student_score": 40,
    }  # fmt: skip
    return Figure.model_validate(values | changes)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("s,t,135,card,ranking,b,50,40,,,", r"line 3: 'kind' = 'ranking'.*'loglikelihood'"),
        ("s,t,135,card,recall,b,0,40,,,", r"line 3: 'teacher_score' = '0'.*greater than 0"),
        ("s,t,135,,recall,b,50,40,,,", r"line 3: 'source' is required"),
        ("s,t,135, ,recall,b,50,40,,,", r"line 3: 'source' = ' '"),
        ("s,t,135,card,recall,b,50,101,,,", r"line 3: 'student_score' = '101'"),
        ("s,t,135,card,recall,b,50,nan,,,", r"line 3: 'student_score' = 'nan'.*finite"),
        ("s,t,135,card,recall,b,50,,,,", r"line 3: expected 'teacher_score' and 'student_score', or"),
        ("s,t,135,card,recall,b,50,40,80,,", r"line 3: expected 'teacher_score' and 'student_score', or"),
        ("s,t,135,card,recall,b,,,,,", r"line 3: expected 'teacher_score' and 'student_score', or"),
        ("s,t,135,card,recall,b,50,40,,0,", r"line 3: 'documents' = '0'"),
        ("s,t,135M,card,recall,b,50,40,,,", r"line 3: 'parameters' = '135M'"),
        ("s,t,135,card,recall,b,50,40,,,,note", r"line 3: more cells than columns"),
    ],
)
def test_a_wrong_figure_is_refused_by_its_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "figures.csv"
    path.write_text(HEADER + "s,t,135,card,loglikelihood,a,50,45,,,\n" + line + "\n")
    with pytest.raises(EvalsuiteError, match=message) as raised:
        read_figures(path)
    assert "\n" not in str(raised.value)


def test_recovery_is_the_ratio_of_macro_averages() -> None:
    (row,) = ledger_rows(
        [
            figure(kind="loglikelihood", teacher_score=80, student_score=76),
            figure(benchmark="b", teacher_score=20, student_score=5),
            figure(benchmark="c", teacher_score=60, student_score=55),
            figure(benchmark="d", teacher_score=10, student_score=1, part_of="c"),
        ]
    )
    assert row.recoveries["loglikelihood"].point == pytest.approx(95)
    assert row.recoveries["generation"].point == pytest.approx(75)
    assert row.gap("generation") == pytest.approx(20)
    assert row.gap("recall") is None


def test_bounds_need_documents_and_hold_for_any_pairing() -> None:
    (row,) = ledger_rows([figure(documents=400)])
    found = row.recoveries["generation"]
    student, teacher = wilson(160, 400, LEVEL), wilson(200, 400, LEVEL)
    assert student is not None
    assert teacher is not None
    assert found.low == pytest.approx(100 * student.low / teacher.high)
    assert found.high == pytest.approx(100 * student.high / teacher.low)
    (unknown,) = ledger_rows([figure(documents=400), figure(benchmark="c")])
    assert (unknown.recoveries["generation"].low, unknown.recoveries["generation"].high) == (-inf, inf)


def test_an_average_over_benchmarks_is_narrower_than_each() -> None:
    (one,) = ledger_rows([figure(documents=400)])
    (four,) = ledger_rows([figure(documents=400, benchmark=name) for name in "abcd"])
    assert four.recoveries["generation"].width == pytest.approx(
        one.recoveries["generation"].width / 2, rel=0.1
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "two figures"),
        ({"benchmark": "c", "part_of": "d"}, "'part_of' = 'd'"),
        (
            {"benchmark": "c", "recovery": 90, "teacher_score": None, "student_score": None},
            "no macro average",
        ),
    ],
)
def test_figures_that_do_not_add_up_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(EvalsuiteError, match=message):
        ledger_rows([figure(), figure(**changes)])


def test_the_published_page_is_that_of_its_figures(tmp_path: Path) -> None:
    main(["--out", str(tmp_path)])
    assert (tmp_path / "README.md").read_text() == (PUBLISHED / "README.md").read_text()
    again, published = (
        list(csv.DictReader((folder / "ledger.csv").read_text().splitlines()))
        for folder in (tmp_path, PUBLISHED)
    )
    assert [row["student"] for row in again] == [row["student"] for row in published]
    numbers = [
        [float(row[name] or -1) for row in rows for name in ("loglikelihood", "recall_low", "generation")]
        for rows in (again, published)
    ]
    assert numbers[0] == pytest.approx(numbers[1])


def test_own_figures_are_those_of_the_results() -> None:
    """Scores of evalsuite's students, by the files that they name."""
    own = [each for each in read_figures(FILE) if each.origin == "evalsuite"]
    assert len(own) == 20
    for each in own:
        rows = list(csv.DictReader((ROOT / each.source).read_text().splitlines()))
        if each.source.endswith("runs.csv"):
            arm = each.model.replace(", ", "-") + "-seed"
            found = [row for row in rows if row["run"].startswith(arm)]
            teacher = [row for row in rows if row["run"] == "teacher"]
            scores = [sum(float(row[each.kind]) for row in part) / len(part) for part in (teacher, found)]
            assert len(found) == 2 * len(teacher) == 12
        else:
            needles = {"recall": "needles", "context": "4096", "protocol": "generation"}
            wanted = needles if each.kind == "recall" else {"scope": "informative", "protocol": each.kind}
            chosen = [row for row in rows if wanted.items() <= row.items()]
            by_label = {row["label"]: 100 * float(row["score"]) for row in chosen}
            scores = [by_label[each.teacher], by_label[each.model]]
        assert [each.teacher_score, each.student_score] == pytest.approx(scores, abs=0.0051)
