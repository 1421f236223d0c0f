"""The throughput study of reports; the stored result is for a million score rows."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from evalsuite.reports.analysis.result_tensor import load_result_tensor
from tests.performance.report_throughput import main, usage_of, write_run


def test_synthetic_run_is_readable(tmp_path: Path) -> None:
    assert write_run(tmp_path / "run", 30) == 3000
    tensor = load_result_tensor([tmp_path / "run"])
    assert tensor.score_rows == 3000
    assert tensor.warnings == ()
    assert len(tensor.cells) == 10
    scores = tensor.cells[0].scores().mean(axis=1)
    assert scores[0] > scores[-1]


@pytest.mark.long
def test_command_writes_measurements(tmp_path: Path) -> None:
    assert main(["--out", str(tmp_path), "--score-rows", "2000"]) == 0
    found = json.loads((tmp_path / "throughput.json").read_text())
    assert found["score_rows"] == 2000
    assert found["processor_seconds"] > 0
    assert found["peak_bytes"] > 5e7
    assert found["page_bytes"] > 1e5


def test_only_the_measured_process_counts() -> None:
    def children() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    subprocess.run([sys.executable, "-c", "sum(range(10**7))"], check=True)
    before = children()
    used = usage_of([sys.executable, "-c", "sum(range(10**6))"])
    assert 0 < used.ru_utime + used.ru_stime == pytest.approx(children() - before, abs=0.02)
    with pytest.raises(subprocess.CalledProcessError, match="exit status 3"):
        usage_of([sys.executable, "-c", "raise SystemExit(3)"])
