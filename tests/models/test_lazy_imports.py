"""What reads requests, responses and configs imports no torch, and describing a teacher builds no model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

CODE = """
import importlib, json, sys
for name in {modules!r}:
    importlib.import_module(name)
{then}
print(json.dumps([name for name in {heavy!r} if name in sys.modules]))
"""


def imported(modules: list[str], heavy: list[str], then: str = "") -> list[str]:
    """Return those of the modules `heavy` that a process has after these imports and statements."""
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(modules=modules, heavy=heavy, then=then)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    "modules",
    [
        ["evalsuite.models", "evalsuite.models.inference", "evalsuite.evaluation.run"],
        ["evalsuite.evaluation.score", "evalsuite.evaluation.build"],
    ],
)
def test_what_builds_and_scores_does_without_torch(modules: list[str]) -> None:
    assert imported(modules, ["torch", "evalsuite.models.mixers"]) == []


@pytest.mark.long
def test_a_teacher_is_described_without_what_builds_models() -> None:
    then = (
        "from evalsuite.evaluation.checkpoints import describe_checkpoints\n"
        "assert describe_checkpoints(['pocket'], None)[0].parameters > 0"
    )
    heavy = [
        "transformers.modeling_utils",
        "evalsuite.models.mixers",
        "evalsuite.models.inference.torch.engine",
    ]
    assert imported(["evalsuite.models.checkpoints"], heavy, then) == []
