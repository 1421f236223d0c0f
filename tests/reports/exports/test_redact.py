"""Redaction: absolute paths are reduced to their last component, also within texts."""

from dataclasses import replace
from pathlib import Path

import pytest

from evalsuite.foundation.machine_paths import last_components
from evalsuite.reports.exports.redact import redact
from evalsuite.reports.page.samples import MAX_RESPONSE, MAX_RESPONSE_REDACTED, write_samples
from evalsuite.reports.records.merging import DivergedEntry
from evalsuite.reports.report import Report, build_report
from evalsuite.reports.run import DivergedStudent
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run
from tests.reports.page_samples import sample_rows
from tests.reports.score_edits import edit_rows


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("/home/me/my models/teacher", "teacher"),
        ("C:\\Users\\me\\r.yaml", "r.yaml"),
        ("distill r --data=/home/me/data /mnt/x/y/", "distill r --data=data y"),
        ("/home/me/engine.py: line 3\nfrom /home/me/a.py", "engine.py: line 3\nfrom a.py"),
        ("log:/home/me/log.txt", "log:log.txt"),
        ("file:///home/me/x.json", "x.json"),
        ("at C:\\Users\\me\\x.txt now", "at x.txt now"),
        ("https://huggingface.co/org/name", "https://huggingface.co/org/name"),
        ("students/gla, ./runs/a/b and ~/x/y", "students/gla, ./runs/a/b and ~/x/y"),
        ("5 tokens /s, and/or", "5 tokens /s, and/or"),
    ],
)
def test_paths_are_reduced_to_their_last_component(text: str, redacted: str) -> None:
    assert last_components({"a": [text, 1]}) == {"a": [redacted, 1]}


def test_the_path_of_a_diverged_student_is_reduced(report: Report) -> None:
    note = DivergedStudent(label="d", path="/home/me/d", stage="kd", step=3, tokens=9, reason="it grew")
    merged = replace(report.tensor.merged, diverged=(DivergedEntry(note, "d"),))
    found = redact(replace(report, tensor=replace(report.tensor, merged=merged)))
    assert [each.note.path for each in found.tensor.merged.diverged] == ["d"]


@pytest.mark.parametrize(("redacted", "length"), [(True, MAX_RESPONSE_REDACTED), (False, MAX_RESPONSE)])
def test_responses_of_a_redacted_page_are_cut_shorter(tmp_path: Path, redacted: bool, length: int) -> None:
    benchmark = SyntheticBenchmark("a", "A", "knowledge", 3, protocols=("generation",))
    run = make_run(tmp_path / "run", [benchmark], [SyntheticCheckpoint("t", lambda *_: 0.6, "teacher")])
    edit_rows(
        run, "a", "generation", lambda _, row: row | {"detail": row["detail"] | {"response": "x" * 9000}}
    )
    write_samples(build_report([run]), tmp_path, redacted=redacted)
    texts = {row["responses"][0]["text"] for row in sample_rows(tmp_path)}
    assert texts == {"x" * (length - 1) + "…"}
