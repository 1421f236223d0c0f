"""A run folder whose manifest is spread over five files is refused by name, and converted by one command."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from evalsuite.cli import main
from evalsuite.foundation import DataError, RunFolderError, read_json, write_json
from evalsuite.reports.run import read_environment, read_manifest
from tests.evaluation.runs import evaluate_quietly


def make_former(run: Path, registered: str) -> None:
    """Write a run's manifest as the files that it was before; one checkpoint is only registered yet."""
    plan = read_json(run / "run.json")
    config, checkpoints = plan.pop("config"), plan["checkpoints"]
    facts = {name: plan.pop(name) for name in ("data", "documents", "engines")}
    facts["seeds"] = {"documents": 0, "responses": {}}
    write_json(run / "environment.json", read_json(run / "environment.json") | facts)
    refs = [
        {name: each[name] for name in ("label", "path", "weights_id", "tokenizer", "positions")}
        for each in checkpoints
    ]
    cells: list[Any] = []
    write_json(
        run / "requests" / "index.json",
        {"schema": 2, "suite": plan["suite"], "config": config, "cells": cells, "checkpoints": refs},
    )
    for each in checkpoints:
        del each["tokenizer"]
    plan["checkpoints"] = [each for each in checkpoints if each["label"] != registered]
    facts = {each["weights_id"]: each for each in checkpoints if each["label"] == registered}
    for each in facts.values():
        del each["weights_id"], each["role"]
    write_json(run / "requests" / "registered.json", facts)
    note = {"label": "lost", "path": "x/lost", "stage": "kd", "step": 1, "tokens": 2, "reason": "nan"}
    write_json(run / "requests" / "diverged.json", {"x/lost": note})
    (run / "plan.yaml").write_text(yaml.safe_dump(plan | {"schema": 3}))
    (run / "run.json").unlink()


def test_a_former_run_is_refused_and_converted(
    crew: Any, suite: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    evaluate_quietly(suite=suite, teacher="t", checkpoints=["a"], out=run)
    before, scores = read_manifest(run), {path: path.read_bytes() for path in run.glob("scores/*")}
    make_former(run, "a")
    with pytest.raises(RunFolderError, match=f"evalsuite convert {run}"):
        read_manifest(run)
    with pytest.raises(RunFolderError, match=f"evalsuite convert {run}"):
        evaluate_quietly(suite=suite, teacher="t", out=run)
    assert main(["convert", str(run)]) == 0
    found = read_manifest(run)
    assert [each.label for each in found.diverged] == ["lost"]
    assert replace(found, diverged=()) == before
    assert not {"data", "documents", "engines", "seeds"} & set(read_environment(run))
    assert {path: path.read_bytes() for path in run.glob("scores/*")} == scores
    assert not [*run.glob("plan.yaml"), *run.glob("requests/*.json")]
    assert main(["convert", str(run)]) == 0
    assert "has a run.json already" in capsys.readouterr().out
    assert not evaluate_quietly(suite=suite, teacher="t", checkpoints=["a"], out=run).missing


@pytest.mark.parametrize("content", ['{"schema": 4', "[]", '{"schema": 4, "suite": "x"}'])
def test_a_damaged_manifest_is_refused_by_name(content: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(DataError, match=r"run\.json: "):
        read_manifest(tmp_path)


def test_a_manifest_of_another_version_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"schema": 5}))
    with pytest.raises(RunFolderError, match=r"run\.json: 'schema' = 5; this evalsuite reads 4"):
        read_manifest(tmp_path)
