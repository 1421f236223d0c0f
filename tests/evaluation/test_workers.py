"""Tasks of a run give the same results in this process and in workers, and their failures are named."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evalsuite.config import RunConfig
from evalsuite.evaluation import phases
from evalsuite.evaluation.processes import workers
from evalsuite.evaluation.processes.workers import MIN_ROWS, MIN_ROWS_TO_IMPORT, Shared, WorkerPool, pays_off
from evalsuite.foundation import DataError, RunFolderError
from evalsuite.reports.run import read_manifest

ROOT = Path(__file__).resolve().parents[2]


def double(task: tuple[int, Shared]) -> tuple[int, int]:
    number, shared = task
    if number < 0:
        raise DataError(f"task {number}: no such number")
    if number == 99:
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * number + shared.get()["more"], os.getpid()


def test_few_tasks_run_here_in_order_and_one_by_one() -> None:
    with WorkerPool() as pool:
        shared = pool.share({"more": 1}, 10)
        results = pool.map(double, [(3, shared), (-1, shared), (5, shared)], rows=10)
        assert next(results) == (0, (7, os.getpid()))
        with pytest.raises(DataError, match="task -1"):
            next(results)


def test_workers_share_tasks_and_pass_their_errors_on() -> None:
    with WorkerPool(2) as pool:
        shared = pool.share({"more": 1}, 10)
        assert shared.value is None
        results = dict(pool.map(double, [(number, shared) for number in range(20)], rows=10))
        assert {number: value for number, (value, _) in results.items()} == {n: 2 * n + 1 for n in range(20)}
        assert os.getpid() not in {process for _, process in results.values()}
        with pytest.raises(DataError, match="task -1: no such number"):
            list(pool.map(double, [(number, shared) for number in (1, -1, 2)], rows=10))
        assert dict(pool.map(double, [(4, shared)], rows=10))[0][0] == 9
        with pytest.raises(RunFolderError, match=r"a worker process was killed.*fewer --workers"):
            list(pool.map(double, [(number, shared) for number in (1, 99, 2)], rows=10))
        folder = Path(str(shared.path)).parent
        assert folder.is_dir()
    assert not folder.exists()


def test_size_follows_from_processors_and_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "num_processors", lambda: 16)
    assert WorkerPool(3).size(1) == 3
    assert WorkerPool(None).size(MIN_ROWS_TO_IMPORT - 1) == 1
    assert WorkerPool(None).size(MIN_ROWS_TO_IMPORT) == workers.MAX_WORKERS
    # Harnesses that are imported already change what pays off.
    monkeypatch.setattr("multiprocessing.forkserver.ensure_running", lambda: None)
    preloading = WorkerPool(None, preload=["json"])
    assert preloading.size(MIN_ROWS) == workers.MAX_WORKERS
    assert preloading.size(MIN_ROWS - 1) == 1


@pytest.mark.parametrize(
    ("suite", "settings", "starts"),
    [
        ("quick", {}, True),
        ("quick", {"limit": 20}, False),
        ("quick", {"workers": 1}, False),
        ("quick", {"phases": ("infer",)}, False),
        ("no-such-suite", {}, False),
    ],
)
def test_harnesses_are_imported_in_advance_for_large_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, suite: str, settings: dict[str, Any], starts: bool
) -> None:
    monkeypatch.setattr(workers, "num_processors", lambda: 8)
    chosen: dict[str, Any] = {"suite": suite, "checkpoints": ["a"], "out": tmp_path, "workers": "auto"}
    if settings.get("phases") == ("infer",):
        chosen.pop("workers")
    assert pays_off(RunConfig(**chosen | settings)) == starts


@pytest.mark.long
def test_parallel_build_equals_serial(crew: Any, suite: Path, tmp_path: Path) -> None:
    from evalsuite.evaluation import evaluate  # Imports torch, which the workers of this module do without.

    for name, count in (("one", 1), ("two", 2)):
        evaluate(
            RunConfig(
                suite=suite,
                checkpoints=["a"],
                out=tmp_path / name,
                phases=("build",),
                workers=count,
                quiet=True,
            )
        )
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.json*"))
    assert len(files) > 4
    for file in files:
        if file.name not in ("environment.json", "run.json"):  # They state when and where.
            assert (tmp_path / "two" / file).read_bytes() == (tmp_path / "one" / file).read_bytes()
    one, two = (read_manifest(tmp_path / name) for name in ("one", "two"))
    assert replace(one, created="") == replace(two, created="")


def test_workers_import_no_models_and_no_formulas_while_they_score() -> None:
    code = f"import sys\nfor name in {[*phases.PRELOADED]}:\n    __import__(name)\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    found = done.stdout.split()
    assert {"evalsuite.evaluation.build", "evalsuite.evaluation.score", "sympy", "math_verify"} <= {*found}
    # Automatic classes, models and generation of transformers take seconds to import.
    models = ("evalsuite.models.checkpoints.load", "evalsuite.models.mixers", "evalsuite.models.decoder")
    auto = ("transformers.models.auto", "transformers.generation", "transformers.modeling_utils")
    assert not [name for name in found if name.startswith((*models, *auto, "torch._dynamo"))]


def test_modules_to_import_in_advance_exist() -> None:
    from importlib.util import find_spec

    from evalsuite.protocols.preload import MODULES

    names = (*MODULES, *phases.PRELOADED)
    assert all(find_spec(name) for name in names)
