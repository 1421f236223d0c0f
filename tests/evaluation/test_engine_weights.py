"""Responses are filed under weights that the engine says it runs, whichever engine it is."""

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from evalsuite.foundation import CheckpointError, read_jsonl
from evalsuite.models.inference.base import Engine
from evalsuite.models.inference.torch.engine import TorchEngine
from evalsuite.models.inference.vllm.engine import VllmEngine
from tests.evaluation.runs import evaluate_quietly

WORKER = """
import json, sys

def reply(value):
    print(json.dumps(value), flush=True)

if sys.argv[1:2] == ["-c"]:
    reply({"installed": True, "versions": ["0.32.0"]})
    sys.exit()
reply({"vllm": "0.32.0"})
for line in sys.stdin:
    message = json.loads(line)
    if message["verb"] == "start":
        reply({"ready": {"vllm": "0.32.0", "device": "cpu"}})
    elif message["verb"] == "score":
        scores = [-float(len(row["tokens"])) for row in message["requests"]]
        reply({"results": [{"logprob": score, "greedy": False} for score in scores]})
    else:
        reply({"results": [{"tokens": row["stop_tokens"][:1]} for row in message["requests"]]})
"""
"""A Python that speaks the vLLM worker's protocol."""


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\n{WORKER}")
    python.chmod(0o755)
    monkeypatch.setenv("EVALSUITE_VLLM_PYTHON", str(python))


@pytest.fixture
def student(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "student"))


def change(folder: Path) -> None:
    """Train in place: one weight becomes another."""
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][0] += 1
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def responses(run: Path) -> list[Any]:
    return [row for path in (run / "responses").glob("*.jsonl") for row in read_jsonl(path)]


def test_vllm_runs_the_checkpoint_of_the_run(vllm: None, student: Path, suite: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    evaluate_quietly(suite=suite, checkpoints=[str(student)], out=run, phases=("build",))
    evaluate_quietly(checkpoints=[str(student)], out=run, phases=("infer",), engine="vllm")
    assert len(responses(run)) == 20
    assert evaluate_quietly(suite=suite, out=run, phases=("score",)).missing == 0


@pytest.mark.parametrize("engine", ["vllm", "torch"])
@pytest.mark.parametrize("paths", ["given", "from the run"])
def test_checkpoint_that_changed_at_its_path_is_refused(
    paths: str, engine: str, vllm: None, student: Path, suite: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    evaluate_quietly(suite=suite, checkpoints=[str(student)], out=run, phases=("build",))
    change(student)
    given = [str(student)] if paths == "given" else []
    with pytest.raises(CheckpointError, match=r"student: weights are .*the checkpoint has changed"):
        evaluate_quietly(
            checkpoints=given,
            out=run,
            phases=("infer",),
            engine=engine,
            **{"device": "cpu"} if engine == "torch" else {},
        )
    assert responses(run) == []


def test_every_engine_names_its_weights() -> None:
    """The protocol demands it: an engine without it is none, and no default hides that."""
    for engine in (TorchEngine, VllmEngine):
        for member in ("weights_id", "versions", "close"):
            assert hasattr(Engine, member)
            assert hasattr(engine, member)
