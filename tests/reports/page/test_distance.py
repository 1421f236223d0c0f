"""The yardstick of the page shows the distances of the report."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

from evalsuite.reports import compare
from evalsuite.reports.measures.distances import distance_of, distances
from evalsuite.reports.records.distances import DISTANCE_FILE
from evalsuite.reports.run import read_manifest
from tests.reports.page.test_sections import Sections


def test_students_stand_between_roundings_of_the_teacher(small_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(small_run, tmp_path / "run"))
    teacher, strong, weak = (each.weights_id for each in read_manifest(run).checkpoints)
    rows = [
        {
            "weights_id": weights,
            "same_recipe_as": weak if weights == "weak again" else None,
            "bits": bits,
            "teacher": teacher,
            "text": text,
            "source": "arc_easy",
            "doc_id": f"{document:016x}",
            "token_class": None,
            "positions": positions,
            "tokens": 4,
            "kl": 4 * kl * (1 + 0.1 * (document % 3)),
            "agreement": 3,
            "teacher_nll": 1.0,
            "student_nll": 2.0,
        }
        for weights, bits, kl in (
            (strong, None, 0.09),
            ("weak again", None, 0.9),
            (teacher, 8, 0.001),
            (teacher, 4, 0.1),
            (teacher, 2, 10.0),
        )
        for text, every in (("answers", [None]), ("held-out", ["1024-2047", "0-1023"]))
        for positions in every
        for document in range(20)
    ]
    DISTANCE_FILE.add(run, pd.DataFrame(rows))
    comparison = compare([run], tmp_path / "out", samples=False)
    page = Sections(comparison.page.read_text())
    figures = page.figures["distance"]
    assert list(figures) == [
        "Distance: right answers",
        "Distance: held-out",
        "Distance by position in the text: held-out",
    ]
    yardstick = figures["Distance: right answers"]
    (students,) = yardstick["data"]
    assert yardstick["layout"]["yaxis"]["ticktext"] == ["strong", "weak (trained again)"]
    expected = [distance_of(comparison.report, checkpoint).kl.point for checkpoint in (1, 2)]
    assert students["x"] == pytest.approx(expected, rel=1e-4)
    assert [mark["text"] for mark in yardstick["layout"]["annotations"]] == ["8", "4", "2"]
    places = [shape["x0"] for shape in yardstick["layout"]["shapes"]]
    assert places[0] < students["x"][0] < places[1] < students["x"][1] < places[2]
    answers = [row for row in comparison.report.of(distances) if (row.text, row.kind) == ("answers", "all")]
    (documents,) = {row.documents for row in answers}
    assert f"KL(teacher ‖ student) over {documents} documents." in page.text["distance"]
    by_position = figures["Distance by position in the text: held-out"]
    assert by_position["layout"]["xaxis"]["ticktext"] == ["0-1023", "1024-2047"]
    bits = distance_of(comparison.report, 1).equivalent_bits.point
    assert f"strong is as far from its teacher as rounding it to {bits:.1f} bits" in page.text["distance"]
    assert "bits" in page.rows["recovery"][0]
    assert "other weights than those that were scored" in page.text["distance"]
    assert " †" in comparison.page.read_text()


def test_columns_without_values_are_not_on_the_page(small_run: Path, tmp_path: Path) -> None:
    page = Sections(compare([small_run], tmp_path, samples=False).page.read_text())
    assert "distance" not in page.text
    assert "bits" not in page.rows["recovery"][0]
    assert "retained %" in page.rows["recovery"][0]
