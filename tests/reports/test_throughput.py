"""The command that measures a report of many records; a million are measured by hand and published."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from evalsuite.reports.panel import load_panel
from evalsuite.reports.throughput import main, usage_of, write_run

PUBLISHED = Path(__file__).parents[2] / "reports" / "published" / "statistics"


def test_its_run_is_one_that_reports_read(tmp_path: Path) -> None:
    assert write_run(tmp_path / "run", 30) == 3000
    panel = load_panel([tmp_path / "run"])
    assert panel.records == 3000
    assert panel.warnings == ()
    assert len(panel.cells) == 10
    scores = panel.cells[0].scores().mean(axis=1)
    assert scores[0] > scores[-1]


def test_the_command_writes_what_it_measured(tmp_path: Path) -> None:
    assert main(["--out", str(tmp_path), "--records", "2000"]) == 0
    found = json.loads((tmp_path / "throughput.json").read_text())
    assert found["records"] == 2000
    assert found["processor_seconds"] > 0
    assert found["peak_bytes"] > 5e7
    assert found["page_bytes"] > 1e5


def test_only_the_process_that_is_measured_counts() -> None:
    def children() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    subprocess.run([sys.executable, "-c", "sum(range(10**7))"], check=True)
    before = children()
    used = usage_of([sys.executable, "-c", "sum(range(10**6))"])
    assert 0 < used.ru_utime + used.ru_stime == pytest.approx(children() - before, abs=0.02)
    with pytest.raises(subprocess.CalledProcessError, match="exit status 3"):
        usage_of([sys.executable, "-c", "raise SystemExit(3)"])


def test_what_is_published_holds() -> None:
    found = json.loads((PUBLISHED / "throughput.json").read_text())
    assert found["records"] == 1_000_000
    # Wall time too, unless the machine was busy with other work.
    assert found["processor_seconds"] < 60
    assert found["seconds"] < 60 or found["load"] > found["processors"]
    assert found["peak_bytes"] < 3e9
    assert found["page_bytes"] < 6e6
