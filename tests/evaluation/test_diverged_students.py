"""Students without a checkpoint: runs name those that diverged in training, and evaluate the others."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from evalsuite.config import RunConfig
from evalsuite.evaluation import evaluate
from evalsuite.evaluation.checkpoints import diverged_students, expand_folders
from evalsuite.evaluation.shards.export import export_shard
from evalsuite.foundation import CheckpointError, write_text
from evalsuite.reports.run import read_manifest
from tests.evaluation.runs import evaluate_quietly

NOTE = {"label": "gla", "stage": "kd", "step": 12, "tokens": 53248, "reason": "the loss is nan"}
WHY = "diverged in training (stage 'kd', step 12, after 53,248 tokens: the loss is nan)"


@pytest.fixture
def students(tmp_path: Path) -> Path:
    """A run folder of two students, of which `gla` has diverged."""
    out = tmp_path / "students"
    (out / "kda").mkdir(parents=True)
    write_text(out / "kda" / "config.json", "{}")
    write_text(out / "kda" / "model.safetensors", "")
    write_text(out / "failed" / "gla.json", json.dumps(NOTE))
    write_text(out / "failed" / "kd-12.safetensors", "")
    return out


@pytest.mark.parametrize("names", [("",), ("kda", "gla"), ("", "gla")])
def test_notes_are_found_in_the_run_folder_and_for_a_student(students: Path, names: tuple[str, ...]) -> None:
    paths = [str(students / name) for name in names]
    assert [(each.label, each.why) for each in diverged_students(paths)] == [("gla", WHY)]
    assert expand_folders(paths) == [str(students / "kda")]


def test_variants_have_notes_too(students: Path) -> None:
    write_text(students / "variants" / "far" / "failed" / "gla.json", json.dumps(NOTE | {"step": 13}))
    assert [each.step for each in diverged_students([str(students)])] == [12, 13]


def test_other_paths_have_none(students: Path) -> None:
    for path in (str(students / "kda"), str(students / "retnet"), "pocket", "ORG/NAME"):
        assert diverged_students([path]) == []
        assert expand_folders([path]) == [path]


def test_nothing_is_left_to_evaluate(students: Path) -> None:
    with pytest.raises(CheckpointError, match=r"gla diverged in training .*: there is no checkpoint to eval"):
        expand_folders([str(students / "gla")])


@pytest.mark.parametrize("text", ["{", '{"label": "gla"}'])
def test_damaged_notes_are_refused_by_name(students: Path, text: str) -> None:
    write_text(students / "failed" / "gla.json", text)
    with pytest.raises(CheckpointError, match=r"note of divergence cannot be read: .*gla\.json"):
        diverged_students([str(students)])


def test_runs_name_them_in_the_plan_until_they_have_a_checkpoint(
    crew: Any, suite: Path, students: Path, tmp_path: Path
) -> None:
    run, gla = tmp_path / "run", str(students / "gla")
    config = {"suite": suite, "teacher": "t", "out": run, "quiet": True}
    summary = evaluate(RunConfig(checkpoints=[str(students / "kda"), gla], **config))
    assert f"gla: {WHY}; it is left out" in str(summary)
    assert [(each.label, each.step) for each in read_manifest(run).diverged] == [("gla", 12)]
    evaluate(RunConfig(checkpoints=[str(students / "kda")], **config))
    assert [each.label for each in read_manifest(run).diverged] == ["gla"]
    (students / "gla").mkdir()
    evaluate(RunConfig(checkpoints=[gla], **config))
    plan = read_manifest(run)
    assert gla in [each.path for each in plan.checkpoints]
    labels = {each.label for each in plan.checkpoints}
    assert [each.label for each in plan.diverged if each.label in labels] == []


def test_a_shard_names_them_to_the_run_that_scores(
    crew: Any, suite: Path, students: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(students)
    home, host, shard = tmp_path / "home", tmp_path / "host", tmp_path / "shard.tar.xz"
    evaluate_quietly(suite=suite, out=home, teacher="t", phases=("build",))
    shutil.copytree(home, host)
    evaluate_quietly(checkpoints=["t", "kda", "gla"], out=host, phases=("infer",))
    export_shard(host, shard)
    evaluate_quietly(out=home, phases=("score",), merge_shards=[shard])
    assert [(each.label, each.why) for each in read_manifest(home).diverged] == [("gla", WHY)]
    # Trained again and evaluated, it has a checkpoint.
    (students / "gla").mkdir()
    evaluate_quietly(checkpoints=["gla"], out=host, phases=("infer",))
    export_shard(host, shard)
    evaluate_quietly(out=home, phases=("score",), merge_shards=[shard])
    plan = read_manifest(home)
    assert {"gla", "kda"} <= {each.label for each in plan.checkpoints}
    assert plan.diverged == ()


def test_a_model_of_the_same_label_does_not_hide_a_student(
    crew: Any, suite: Path, students: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    (tmp_path / "other" / "gla").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "other")
    evaluate_quietly(suite=suite, teacher="t", checkpoints=[str(students), "gla"], out=run)
    plan = read_manifest(run)
    assert "gla" in [each.label for each in plan.checkpoints]
    assert [each.path for each in plan.diverged] == [str(students / "gla")]
