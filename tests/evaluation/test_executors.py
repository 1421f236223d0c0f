"""A run that is split over workers comes to the same as one in this process, however many of them die."""

import json
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

from evalsuite.config import RunConfig
from evalsuite.evaluation import evaluate
from evalsuite.foundation import ConfigError, RunFolderError
from evalsuite.reports.run import read_environment
from tests.evaluation.runs import evaluate_quietly
from tests.reports.score_edits import rows_by_cell

SUITE = """
name: spread
title: Spread
limit: {limit}
benchmarks:
  - pocket_facts
  - pocket_instructions
  - {{benchmark: pocket_niah_single_2, contexts: [256], limit: 6}}
"""
SLURM = {"num_workers": 2, "cluster": "local", "gpus": 0, "retries": 20}
RAY = {"num_workers": 2, "retries": 20}


@pytest.fixture
def checkpoints(make_llama: Callable[[Path, int], Path], tmp_path: Path) -> Callable[[int], list[str]]:
    """Make so many small checkpoints with different weights."""
    return lambda count: [str(make_llama(tmp_path / f"model-{seed}", seed)) for seed in range(count)]


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """Both protocols and needles."""
    path = tmp_path / "spread.yaml"
    path.write_text(SUITE.format(limit=12))
    return path


def same(one: Path, other: Path) -> None:
    """Scores are equal, and log-probabilities to the rounding of other batches."""
    found, expected = rows_by_cell(one), rows_by_cell(other)
    assert found.keys() == expected.keys()
    for cell, rows in expected.items():
        assert len(found[cell]) == len(rows)
        for mine, theirs in zip(found[cell], rows, strict=True):
            assert mine["values"] == theirs["values"], cell
            details = [(each["detail"] or {}).get("logprobs", []) for each in (mine, theirs)]
            assert details[0] == pytest.approx(details[1], abs=1e-4)


def logged(run: Path) -> list[tuple[str, str]]:
    """Fingerprint and key of every line of the response logs."""
    return [
        (path.name, json.dumps(json.loads(line)["key"]))
        for path in sorted((run / "responses").glob("*.jsonl"))
        for line in path.read_bytes().splitlines()
    ]


def workers_below(process: int) -> list[int]:
    """Processes of workers among the descendants of a process."""
    found, waiting = [], [process]
    while waiting:
        parent = waiting.pop()
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                children = [int(each) for each in task.read_text().split()]
            except OSError:
                continue
            waiting += children
            for child in children:
                try:
                    command = Path(f"/proc/{child}/cmdline").read_bytes()
                except OSError:
                    continue
                if b"_Host" in command or b"submitit.core._submit" in command:
                    found.append(child)
    return found


@pytest.mark.long
@pytest.mark.parametrize(("executor", "arguments"), [("slurm", SLURM), ("ray", RAY)])
def test_scores_equal_those_of_one_process(
    executor: str,
    arguments: dict[str, Any],
    checkpoints: Callable[[int], list[str]],
    suite: Path,
    tmp_path: Path,
) -> None:
    pytest.importorskip({"slurm": "submitit"}.get(executor, executor))
    paths = checkpoints(2)
    evaluate_quietly(suite=suite, checkpoints=paths, out=tmp_path / "local")
    spread = RunConfig(
        suite=suite,
        checkpoints=paths,
        out=tmp_path / "spread",
        executor=executor,
        executor_args=arguments,
        quiet=True,
    )
    summary = evaluate(spread)
    assert summary.missing == 0
    same(tmp_path / "spread", tmp_path / "local")
    lines = logged(tmp_path / "spread")
    assert len(lines) == len(set(lines)) == sum(summary.computed.values())
    spent = read_environment(tmp_path / "spread")["inference"]
    assert {each["label"] for each in spent} == {"model-0", "model-1"}
    assert evaluate(spread).computed == {"model-0": 0, "model-1": 0}


@pytest.mark.long
def test_a_worker_with_other_numerics_is_refused_by_name(
    checkpoints: Callable[[int], list[str]], suite: Path, tmp_path: Path
) -> None:
    pytest.importorskip("submitit")
    path, out = checkpoints(1), tmp_path / "run"
    evaluate_quietly(suite=suite, checkpoints=path, out=out, dtype="bfloat16")
    before = logged(out)
    with pytest.raises(RunFolderError, match=r"of host .*dtype bfloat16 there, float32 here"):
        evaluate_quietly(out=out, executor="slurm", executor_args=SLURM, phases=("infer",), dtype="float32")
    assert logged(out) == before


def test_one_gpu_by_name_is_refused(
    checkpoints: Callable[[int], list[str]], suite: Path, tmp_path: Path
) -> None:
    pytest.importorskip("submitit")
    with pytest.raises(ConfigError, match="cuda:1 names one GPU"):
        evaluate_quietly(
            suite=suite,
            checkpoints=checkpoints(1),
            out=tmp_path / "run",
            device="cuda:1",
            executor="slurm",
            executor_args=SLURM,
        )


CODE = """
import json, sys
from evalsuite.config import RunConfig
from evalsuite.evaluation import evaluate
if __name__ == "__main__":
    suite, out, executor, arguments, *paths = sys.argv[1:]
    print(evaluate(RunConfig(suite=suite, checkpoints=paths, out=out, executor=executor,
        executor_args=json.loads(arguments), quiet=True)))
"""


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("executor", "arguments"), [("slurm", SLURM), ("ray", RAY)])
def test_ten_killed_workers_and_a_killed_driver_lose_nothing(
    executor: str, arguments: dict[str, Any], checkpoints: Callable[[int], list[str]], tmp_path: Path
) -> None:
    pytest.importorskip({"slurm": "submitit"}.get(executor, executor))
    suite = tmp_path / "spread.yaml"
    suite.write_text(SUITE.format(limit=200))
    paths, out = checkpoints(10), tmp_path / "spread"
    evaluate_quietly(suite=suite, checkpoints=paths, out=tmp_path / "local")
    root = str(Path(__file__).parents[2])
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
    }
    command = [sys.executable, "-c", CODE, str(suite), str(out), executor, json.dumps(arguments), *paths]
    dice = random.Random(3)
    killed = drivers = 0
    process = subprocess.Popen(command, env=environment)
    while killed < 10:
        time.sleep(dice.uniform(1, 4))
        if process.poll() is not None:
            pytest.fail(f"the run ended with {process.returncode} after {killed} kills; give it more to do")
        if killed == 5 and not drivers:
            process.kill()
            process.wait()
            drivers = 1
            process = subprocess.Popen(command, env=environment)
            continue
        workers = workers_below(process.pid)
        if workers:
            os.kill(dice.choice(workers), signal.SIGKILL)
            killed += 1
    assert process.wait() == 0
    assert drivers == 1
    same(out, tmp_path / "local")
    lines = logged(out)
    assert len(lines) == len(set(lines))
