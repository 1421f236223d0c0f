"""Published crossovers are those of their measurements."""

import shutil
from pathlib import Path

import pytest

from evalsuite.reports.studies.efficiency_crossovers import main

RESULTS = Path(__file__).parents[3] / "reports" / "results" / "efficiency-h200"


def test_published_crossovers_are_found_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(RESULTS) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("360 of 360 crossings"), shown


def test_a_changed_measurement_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(RESULTS / "efficiency.jsonl", tmp_path)
    crossovers = (RESULTS / "crossovers.csv").read_text().splitlines()
    changed = [line.replace("22036.", "22046.") for line in crossovers]
    assert changed != crossovers
    (tmp_path / "crossovers.csv").write_text("\n".join(changed))
    assert main(tmp_path) == 1
    assert "published" in capsys.readouterr().out
    assert main(tmp_path / "absent") == 64
