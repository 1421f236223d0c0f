"""environment.json and run.json say what explains a number later."""

import re
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from evalsuite.evaluation import environment
from evalsuite.models.ops.recurrence import RecurrenceInputs, compute_recurrence
from evalsuite.reports.run import read_facts, read_manifest
from tests.evaluation.runs import evaluate_quietly


def test_environment_records_kernels_and_backend(tmp_path: Path) -> None:
    q = torch.randn(1, 4, 2, 8)
    compute_recurrence(RecurrenceInputs(q, q, q))
    environment.update_environment(tmp_path, **environment.kernel_facts())
    facts = environment.read_environment(tmp_path)
    assert any("torch" in kernel for kernel in facts["kernels"].values())
    assert facts["packages"]["torch"] == version("torch")


def test_environment_records_git_commit_and_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(
            ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments],
            check=True,
            capture_output=True,
        )

    monkeypatch.setattr(environment.evalsuite, "__file__", str(tmp_path / "evalsuite" / "__init__.py"))
    assert environment.describe_machine()["git"] is None
    environment._git.cache_clear()
    git("init", "-q")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-q", "-m", "first")
    found = environment.describe_machine()["git"]
    assert re.fullmatch("[0-9a-f]{40}", found["commit"])
    assert found["changed"] is False
    (tmp_path / "file").write_text("two")
    assert environment.describe_machine()["git"] == found
    environment._git.cache_clear()
    assert environment.describe_machine()["git"]["changed"] is True


def test_the_manifest_states_seeds_documents_and_engines(tiny: Path, tmp_path: Path) -> None:
    suite = tmp_path / "s.yaml"
    suite.write_text(
        "name: s\ntitle: S\nseed: 5\nseeds: [1, 2]\nlimit: 2\nsampling: {temperature: 0.7}\n"
        "benchmarks: [pocket_facts]\n"
    )
    evaluate_quietly(suite=suite, checkpoints=[str(tiny)], out=tmp_path / "run", device="cpu")
    manifest = read_manifest(tmp_path / "run")
    assert manifest.seeds == {"documents": 5, "responses": {"pocket_facts": [1, 2]}}
    assert [*manifest.documents] == ["pocket_facts"]
    (engine,) = manifest.engines.values()
    assert engine.versions["dtype"] == "float32"
    assert engine.versions["device"] == "cpu"
    assert engine.versions["torch"] == torch.__version__
    facts = read_facts(tmp_path / "run")
    assert facts["packages"]["torch"] == version("torch")
    assert (facts["seeds"], facts["documents"]) == (manifest.seeds, manifest.documents)
    assert [each["fingerprint"] for each in facts["engines"].values()] == [engine.fingerprint]
