"""A run of several seeds in which no document has all of them yet."""

from pathlib import Path

import pytest

from evalsuite.cli.entry import main
from evalsuite.reports.imports import import_logs
from tests.reports.imports.test_stored_logs import FIXTURES
from tests.reports.score_edits import edit_rows


def test_a_run_without_a_complete_document_is_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = [("inspect", FIXTURES / "inspect" / f"{model}_sums.json") for model in ("big", "small")]
    runs = import_logs(logs, tmp_path / "runs")
    for run in runs:
        edit_rows(run, "sums", "generation", lambda _, row: None if row["seed"] else row)
    named = [str(run) for run in runs]
    assert main(["compare", *named, "--teacher", "big", "--out", str(tmp_path / "report")]) == 0
    assert "'big', 'small' have 0 of 12 documents under generation" in capsys.readouterr().out
    assert main(["gate", *named, "--teacher", "big", "--min-recovery", "0.5"]) == 3
