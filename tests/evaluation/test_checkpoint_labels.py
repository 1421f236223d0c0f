"""A run names each checkpoint once: labels that come back with other weights, from any entrance."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evalsuite.evaluation.shards.export import export_shard
from evalsuite.evaluation.shards.merge import merge_shards
from evalsuite.foundation import EvalsuiteError
from evalsuite.reports.records.loss_curves import loss_curve_path
from evalsuite.reports.run import read_manifest
from tests.evaluation.runs import evaluate_quietly


@pytest.fixture
def weights(crew: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Label checkpoints by the last part of their path; returns the weights that a test may set, by path."""
    describe: Callable[..., list[Any]] = crew.describe_checkpoints

    def describe_checkpoints(*arguments: Any, **options: Any) -> list[Any]:
        return [replace(each, label=Path(each.path).name) for each in describe(*arguments, **options)]

    monkeypatch.setattr("evalsuite.evaluation.checkpoints.describe_checkpoints", describe_checkpoints)
    weights: dict[str, str] = crew.weights
    return weights


def labels(run: Path) -> dict[str, str]:
    """weights_id → label in the manifest."""
    return read_manifest(run).labels


def outcome(action: Callable[[], object]) -> str:
    """The error of an action as text, or the empty string."""
    try:
        action()
    except EvalsuiteError as error:
        return str(error)
    return ""


def test_same_folder_name_gets_a_longer_label(weights: dict[str, str], suite: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    evaluate_quietly(suite=suite, checkpoints=["a/kda"], out=run, teacher="t")
    assert outcome(lambda: evaluate_quietly(suite=suite, checkpoints=["b/kda"], out=run)) == ""
    assert labels(run) == {"weights-t": "t", "weights-a/kda": "kda", "weights-b/kda": "b/kda"}
    # Repeated, in either order, nothing changes.
    assert evaluate_quietly(suite=suite, checkpoints=["b/kda"], out=run).computed == {"b/kda": 0}
    assert evaluate_quietly(suite=suite, checkpoints=["a/kda"], out=run).computed == {"kda": 0}
    assert set(labels(run).values()) == {"t", "kda", "b/kda"}


def test_checkpoint_retrained_in_place_gets_a_label_of_its_own(
    weights: dict[str, str], suite: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    evaluate_quietly(suite=suite, checkpoints=["students/kda"], out=run, teacher="t")
    weights["students/kda"] = "fedcba9876543210"
    assert outcome(lambda: evaluate_quietly(suite=suite, checkpoints=["students/kda"], out=run)) == ""
    assert evaluate_quietly(suite=suite, checkpoints=["students/kda"], out=run).computed == {
        "kda (fedcba)": 0
    }
    assert labels(run) == {
        "weights-t": "t",
        "weights-students/kda": "kda",
        "fedcba9876543210": "kda (fedcba)",
    }
    evaluate_quietly(suite=suite, out=run, phases=("score",))


def test_late_checkpoint_gets_a_longer_label(weights: dict[str, str], suite: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    evaluate_quietly(suite=suite, checkpoints=["a/kda"], out=run, teacher="t", phases=("build",))
    assert outcome(lambda: evaluate_quietly(checkpoints=["b/kda"], out=run, phases=("infer",))) == ""
    evaluate_quietly(suite=suite, out=run, phases=("score",))
    assert labels(run) == {"weights-t": "t", "weights-a/kda": "kda", "weights-b/kda": "b/kda"}


def test_shards_of_equal_labels_are_merged(
    crew: Any, weights: dict[str, str], suite: Path, tmp_path: Path
) -> None:
    """Two hosts each evaluate another checkpoint that both call kda."""
    home, shards = tmp_path / "home", []
    evaluate_quietly(suite=suite, out=home, teacher="t", phases=("build",))
    for host in ("a", "b"):
        shutil.copytree(home, tmp_path / host)
        evaluate_quietly(checkpoints=[f"{host}/kda"], out=tmp_path / host, phases=("infer",))
        shards.append(export_shard(tmp_path / host, tmp_path / f"{host}.tar.xz"))
    assert merge_shards(home, shards[:1]) == {"kda": 20}
    assert outcome(lambda: merge_shards(home, shards[1:])) == ""
    assert labels(home) == {"weights-t": "t", "weights-a/kda": "kda", "weights-b/kda": "b/kda"}


def test_manifest_is_validated_before_it_is_written(
    weights: dict[str, str], suite: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    evaluate_quietly(suite=suite, checkpoints=["a", "b"], out=run, phases=("build",))
    before = (run / "run.json").read_bytes()
    plan = read_manifest(run)
    first, second = plan.checkpoints
    with pytest.raises(ValueError, match="label 'a' is listed twice"):
        replace(plan, checkpoints=(first, replace(second, label=first.label)))
    assert (run / "run.json").read_bytes() == before


def test_loss_curve_has_the_label_of_the_run(
    crew: Any, weights: dict[str, str], suite: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    for name in ("a", "b"):
        path = tmp_path / name / "kda" / "training.jsonl"
        path.parent.mkdir(parents=True)
        path.write_text(f'{{"stage": "kd", "tokens": 64, "loss": {len(crew.training)}.5}}\n')
        crew.training[f"{name}/kda"] = path
    evaluate_quietly(suite=suite, checkpoints=["a/kda"], out=run, phases=("build",))
    assert (
        outcome(lambda: evaluate_quietly(suite=suite, checkpoints=["b/kda"], out=run, phases=("build",)))
        == ""
    )
    for label, path in (("kda", crew.training["a/kda"]), ("b/kda", crew.training["b/kda"])):
        assert loss_curve_path(run, label).read_bytes() == path.read_bytes()
