"""Inputs that are missing or invalid are refused before torch is imported, which takes seconds."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evalsuite.config import RunConfig
from evalsuite.evaluation import evaluate, inputs, phases
from evalsuite.evaluation.inputs import check_inputs
from evalsuite.foundation import CheckpointError, DataError
from evalsuite.models.checkpoints.location import locate_here
from tests.evaluation.conftest import Crew
from tests.evaluation.runs import evaluate_quietly

ROOT = Path(__file__).resolve().parents[2]

CODE = """
import contextlib, io, json, sys
from evalsuite.cli import main
found = {}
for command in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as shown:
        code = main(command)
    found[" ".join(command)] = code, shown.getvalue(), "torch" in sys.modules
print(json.dumps(found))
"""

REFUSED = {
    "run pockt --teacher pocket --out run": "unknown suite or benchmark 'pockt'; did you mean 'pocket'",
    "run missing.yaml --teacher pocket --out run": "missing.yaml",
    "run keys.yaml --teacher pocket --out run": "did you mean 'benchmarks'",
    "run names.yaml --teacher pocket --out run": "did you mean 'arc_easy'",
    "run --config keys.yaml --out run": "keys.yaml",
    "run --config missing.yaml --out run": "missing.yaml",
    "run pocket --teacher ./missing --out run": "./missing: no such folder or file",
    "run pocket --teacher pocket --checkpoint empty --out run": "empty: no config.json",
    "run quick --teacher pocket --data missing --out run": "missing: no such data folder",
    "run all --teacher ./missing --out run": "./missing: no such folder or file",
    "run --infer-only --out run": "not a run folder",
    "run --infer-only --teacher ./missing --out built": "./missing: no such folder or file",
    "run arc --infer-only --out built": "holds a run of suite small, not arc",
    "show checkpoint ./missing": "./missing: no such folder or file",
    "show checkpoint empty": "empty: no config.json",
    "run --score-only --merge-shards missing.tar.xz --out built": "missing.tar.xz",
}


def test_refusals_come_before_torch(crew: Crew, suite: Path, tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text("name: keys\ntitle: Keys\nbenchmark: [arc_easy]\n")
    (tmp_path / "names.yaml").write_text("name: names\ntitle: Names\nbenchmarks: [arc_esy]\n")
    (tmp_path / "empty").mkdir()
    built = tmp_path / "built"
    evaluate_quietly(suite=suite, checkpoints=["a"], out=built, phases=("build",))
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps([command.split() for command in REFUSED])],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert list(found) == list(REFUSED)
    for command, (code, shown, imported_torch) in found.items():
        assert code >= 64, command
        assert REFUSED[command] in shown, (command, shown)
        assert not imported_torch, command
    assert not (tmp_path / "run").exists()


def test_data_folders_are_needed_by_runs_without_documents(tmp_path: Path) -> None:
    config = RunConfig(suite="quick", teacher="pocket", data=tmp_path / "missing", out=tmp_path / "run")
    with pytest.raises(DataError, match="no such data folder"):
        check_inputs(config, [])
    # What it cannot read is left out, and what is generated remains.
    check_inputs(replace(config, skip_missing=True), [])
    check_inputs(replace(config, suite="pocket"), [])
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").touch()
    check_inputs(config, [])


def test_a_process_is_started_for_valid_inputs_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []

    def start(make: object) -> Any:
        started.append(make)
        raise StoppedError

    monkeypatch.setattr(phases, "pays_off", lambda config: True)
    monkeypatch.setattr(phases, "Background", start)
    config = RunConfig(suite="pocket", teacher=str(tmp_path / "missing"), out=tmp_path / "run")
    with pytest.raises(CheckpointError, match="no such folder"):
        evaluate(config)
    assert not started
    with pytest.raises(StoppedError):
        evaluate(replace(config, teacher="pocket"))
    assert len(started) == 1


class StoppedError(Exception):
    """Ends a run before it builds."""


def test_checkpoints_of_a_built_run_may_be_elsewhere(
    crew: Crew, suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate_quietly(suite=suite, checkpoints=["a"], out=tmp_path / "run", phases=("build",))
    monkeypatch.setattr(inputs, "locate_here", locate_here)
    config = RunConfig(out=tmp_path / "run", phases=("infer",))
    check_inputs(config, ["a"])
    with pytest.raises(CheckpointError, match="b: no such folder"):
        check_inputs(config, ["a", "b"])
