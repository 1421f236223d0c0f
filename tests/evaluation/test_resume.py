"""A run with a real engine that is killed in the middle goes on where it was, and comes to the same."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from evalsuite.foundation import RunFolderError
from tests.evaluation.runs import evaluate_quietly
from tests.models.conftest import one_thread as one_thread  # Another number sums in another order.
from tests.reports.score_edits import rows_by_cell

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
from evalsuite.config import RunConfig
from evalsuite.evaluation import evaluate
print(evaluate(RunConfig(suite=sys.argv[1], checkpoints=[sys.argv[2]], out=sys.argv[3], quiet=True)))
"""

PRELOADED = [
    "evalsuite.evaluation.build",
    "evalsuite.evaluation.score",
    "evalsuite.models.inference.torch.engine",
    "lm_eval.api.task",
]
"""What a life would import before it does anything."""


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


@pytest.mark.long
def test_killed_run_resumes_with_equal_scores(
    start: Callable[[Path], subprocess.Popen], tiny: Path, tmp_path: Path
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    evaluate_quietly(suite=tmp_path / "killed.yaml", checkpoints=[str(tiny)], out=whole)
    answers = lines(whole / "responses")
    assert sum(map(len, rows_by_cell(whole).values())) == 40 + 40 + 12 + 12

    kill_when(start(killed), lambda: lines(killed / "responses") > 0)
    first = lines(killed / "responses")
    kept = {path.name: path.read_bytes() for path in (killed / "responses").iterdir()}
    kill_when(start(killed), lambda: any((killed / "scores").glob("*.parquet")))
    assert 0 < first <= lines(killed / "responses") == answers
    process = start(killed)
    output, _ = process.communicate()
    assert process.returncode == 0
    # No response was computed twice, and no file on disk was touched.
    assert output.splitlines()[-2].startswith("computed responses:")
    assert output.splitlines()[-2].endswith(" 0")
    for name, before in kept.items():
        cut = before.rfind(b"\n") + 1
        assert (killed / "responses" / name).read_bytes()[:cut] == before[:cut]

    assert_same_records(killed, whole)


def assert_same_records(found: Path, expected: Path) -> None:
    """Score files are equal, byte by byte."""
    files = sorted((expected / "scores").glob("*.parquet"))
    assert files
    assert sorted(path.name for path in (found / "scores").glob("*.parquet")) == [path.name for path in files]
    for path in files:
        assert (found / "scores" / path.name).read_bytes() == path.read_bytes(), path.name


SMALL = """
name: small
title: Small
limit: 12
benchmarks:
  - pocket_facts
  - {benchmark: pocket_niah_single_2, contexts: [256], limit: 6}
"""


def ask(suite: str, checkpoint: str, out: str) -> None:
    """One life of a run, in a process of its own."""
    torch.set_num_threads(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    evaluate_quietly(suite=suite, checkpoints=[checkpoint], out=out)


def ask_again(suite: str, checkpoint: str, out: str) -> None:
    """One of two writers: waits for the other, as a user who repeats the command."""
    while True:
        try:
            return ask(suite, checkpoint, out)
        except RunFolderError as error:
            if "is using this folder" not in str(error):
                raise
            time.sleep(0.05)


def nothing() -> None:
    """Make the server import what it imports."""


def lives(
    target: Callable[..., object], text: str, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Callable[[str], Any], float]:
    """What starts a run into a folder, and the seconds that a whole one took, into the folder `whole`."""
    suite = tmp_path / "killed.yaml"
    suite.write_text(text)
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    # A server that has imported everything: lives then begin at once, and kills hit work, not imports.
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(PRELOADED)

    def live(out: str) -> Any:
        process = server.Process(target=target, args=(str(suite), str(tiny), str(tmp_path / out)))
        process.start()
        return process

    warm = server.Process(target=nothing)
    warm.start()
    warm.join()
    start = time.monotonic()
    whole = live("whole")
    whole.join()
    assert whole.exitcode == 0
    return live, time.monotonic() - start


@pytest.mark.parametrize(
    ("text", "kills"), [(SMALL, 3), pytest.param(SUITE, 20, marks=pytest.mark.long)], ids=["3", "20"]
)
@pytest.mark.timeout(1800)
def test_killed_at_random_moments(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, kills: int
) -> None:
    live, taken = lives(ask, text, tiny, tmp_path, monkeypatch)
    draw = random.Random(kills)
    killed = folder = 0
    while killed < kills:
        process = live(f"killed-{folder}")
        process.join(draw.uniform(0, taken))
        process.kill()
        process.join()
        if process.exitcode == -signal.SIGKILL:
            killed += 1
            continue
        # What ended by itself has ended well, and the next kill is of a run that starts afresh.
        assert process.exitcode == 0
        assert_same_records(tmp_path / f"killed-{folder}", tmp_path / "whole")
        folder += 1
    last = live(f"killed-{folder}")
    last.join()
    assert last.exitcode == 0
    assert_same_records(tmp_path / f"killed-{folder}", tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", [pytest.param(20, marks=pytest.mark.long)])
def test_two_writers_killed_in_every_phase(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    live, taken = lives(ask_again, SMALL, tiny, tmp_path, monkeypatch)
    draw = random.Random(kills)
    killed = folder = 0
    while killed < kills:
        out = f"both-{folder}"
        pair = [live(out), live(out)]
        pair[0].join(draw.uniform(0, taken))
        # The first writer is killed; the second one takes over and ends well.
        pair[0].kill()
        pair[0].join()
        if pair[0].exitcode == -signal.SIGKILL:
            killed += 1
            if killed % 2:
                pair[1].join(draw.uniform(0, taken))
                pair[1].kill()
        pair[1].join()
        assert pair[1].exitcode in (0, -signal.SIGKILL)
        if pair[1].exitcode == 0:
            assert_same_records(tmp_path / out, tmp_path / "whole")
            folder += 1
        else:
            killed += 1
    last = live(f"both-{folder}")
    last.join()
    assert last.exitcode == 0
    assert_same_records(tmp_path / f"both-{folder}", tmp_path / "whole")
