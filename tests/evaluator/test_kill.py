"""A run with a real engine that is killed in the middle goes on where it was, and comes to the same."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from evalsuite.evaluator import evaluate
from evalsuite.foundation import read_jsonl

SUITE = """
name: killed
title: Killed
limit: 40
benchmarks:
  - pocket_facts
  - {benchmark: pocket_niah_single_2, contexts: [512], limit: 12}
"""
CODE = """
import sys
from evalsuite.evaluator import evaluate
print(evaluate(sys.argv[1], [sys.argv[2]], sys.argv[3], quiet=True))
"""


@pytest.fixture
def start(tiny: Path, tmp_path: Path) -> Callable[[Path], subprocess.Popen]:
    suite = tmp_path / "killed.yaml"
    suite.write_text(SUITE)
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))

    def run(out: Path) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-c", CODE, str(suite), str(tiny), str(out)],
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )

    return run


def kill_when(process: subprocess.Popen, reached: Callable[[], bool]) -> None:
    """Kill a process, hard, as soon as something has happened."""
    while process.poll() is None and not reached():
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()


def lines(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("*.jsonl")) if folder.is_dir() else 0


@pytest.mark.slow
def test_a_killed_run_resumes_and_comes_to_the_same(
    start: Callable[[Path], subprocess.Popen], tiny: Path, tmp_path: Path
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    evaluate(tmp_path / "killed.yaml", [str(tiny)], whole, quiet=True)
    answers, records = lines(whole / "answers"), lines(whole / "records")
    assert records == 40 + 40 + 12 + 12

    kill_when(start(killed), lambda: lines(killed / "answers") > 0)
    first = lines(killed / "answers")
    kept = {path.name: path.read_bytes() for path in (killed / "answers").iterdir()}
    kill_when(start(killed), lambda: lines(killed / "records") > 0)
    assert 0 < first <= lines(killed / "answers") == answers
    process = start(killed)
    output, _ = process.communicate()
    assert process.returncode == 0
    # Nothing that was answered was asked again, and nothing that was on disk was touched.
    assert output.splitlines()[-2].startswith("computed answers:")
    assert output.splitlines()[-2].endswith(" 0")
    for name, before in kept.items():
        cut = before.rfind(b"\n") + 1
        assert (killed / "answers" / name).read_bytes()[:cut] == before[:cut]

    for path in sorted((whole / "records").iterdir()):
        expected = list(read_jsonl(path))
        found = list(read_jsonl(killed / "records" / path.name))
        assert len(found) == len(expected)
        for mine, theirs in zip(found, expected, strict=True):
            # Batches differ after a resume, and with them the last digits.
            logprobs = mine["detail"].pop("logprobs", [])
            assert logprobs == pytest.approx(theirs["detail"].pop("logprobs", []), abs=1e-4)
            assert mine == theirs
