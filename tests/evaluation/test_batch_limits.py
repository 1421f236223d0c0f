"""A resumed run is bit-identical whatever memory is free: it reuses the batch limits that it recorded."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from evalsuite.config import RunConfig
from evalsuite.evaluation import evaluate
from evalsuite.foundation import DataError, read_json, read_jsonl, write_json
from evalsuite.models.inference.batch_limits import BatchLimits
from evalsuite.models.inference.torch import engine as torch_engine
from evalsuite.reports.run import read_manifest
from tests.evaluation.runs import evaluate_quietly

SUITE = """
name: s
title: S
limit: 12
benchmarks:
  - {benchmark: pocket_facts, protocols: [loglikelihood]}
  - {benchmark: pocket_cloze, protocols: [loglikelihood]}
"""


@pytest.fixture
def free_tokens(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let limits follow from "free memory", as on a GPU: tokens of one forward pass."""

    def set_to(tokens: int) -> None:
        limits = BatchLimits(tokens, tokens // 4, 1 << 23, 2 << 30, 32)
        monkeypatch.setattr(torch_engine, "compute_batch_limits", lambda *_, **__: limits)

    return set_to


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "s.yaml"
    path.write_text(SUITE)
    return path


def responses(run: Path) -> dict[str, Any]:
    return {
        json.dumps(row["key"]): row["response"]
        for path in (run / "responses").glob("*.jsonl")
        for row in read_jsonl(path)
    }


def test_resumed_run_is_bit_identical_with_other_free_memory(
    tiny: Path, suite: Path, tmp_path: Path, free_tokens: Callable[[int], None]
) -> None:
    batches = ["pocket_facts", "pocket_cloze"]
    for run in (whole := tmp_path / "whole", resumed := tmp_path / "resumed"):
        evaluate_quietly(suite=suite, checkpoints=[str(tiny)], out=run, phases=("build",))

    def infer(run: Path, tokens: int, batches: list[str]) -> dict[str, Any]:
        free_tokens(tokens)
        evaluate_quietly(
            checkpoints=[str(tiny)], out=run, phases=("infer",), benchmarks=batches, device="cpu"
        )
        return responses(run)

    expected = infer(whole, 4096, batches)
    assert 0 < len(infer(resumed, 4096, batches[:1])) < len(expected)
    assert infer(resumed, 64, batches) == expected


def test_limits_are_recorded_with_their_fingerprint(
    tiny: Path, suite: Path, tmp_path: Path, free_tokens: Callable[[int], None]
) -> None:
    run = tmp_path / "run"
    for tokens in (512, 64):
        free_tokens(tokens)
        evaluate_quietly(suite=suite, checkpoints=[str(tiny)], out=run, device="cpu")
        (engine,) = read_manifest(run).engines.values()
        assert engine.batch_limits == asdict(BatchLimits(512, 128, 1 << 23, 2 << 30, 32))


@pytest.fixture(scope="module")
def inferred(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run up to its responses."""
    folder = tmp_path_factory.mktemp("inferred")
    (folder / "s.yaml").write_text(SUITE)
    settings: dict[str, Any] = {"phases": ("build", "infer"), "device": "cpu", "quiet": True}
    evaluate(RunConfig(suite=folder / "s.yaml", checkpoints=[str(tiny)], out=folder / "run", **settings))
    return folder / "run"


@pytest.mark.parametrize("damage", [{"max_tokens": 0}, {"max_tokens": "64"}, {"tokens": 4}, None])
def test_damaged_limits_are_refused(
    damage: dict[str, Any] | None, tiny: Path, inferred: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(inferred, tmp_path / "run")
    manifest = read_json(run / "run.json")
    (engine,) = manifest["engines"].values()
    engine["batch_limits"] = [] if damage is None else engine.get("batch_limits", {}) | damage
    write_json(run / "run.json", manifest)
    with pytest.raises(DataError, match=r"run\.json: '?engines\.\w+\.batch_limits"):
        evaluate_quietly(checkpoints=[str(tiny)], out=run, phases=("infer",), device="cpu")
