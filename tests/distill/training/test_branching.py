"""Branches equal runs of their recipes from the start; those that differ in what has begun are refused."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from evalsuite.cli import main
from evalsuite.distill import Recipe, distill
from evalsuite.foundation import CheckpointError, RunFolderError, read_jsonl, write_text
from tests.distill.training.saved_states import num_states


@pytest.fixture(scope="module")
def make(teacher_folder: Path, small_recipe: Any, stage: Any) -> Any:
    """Recipes of three stages, by settings of the last one; `last=None`: the two stages before it."""

    def recipe(last: dict[str, Any] | None, **changes: Any) -> Recipe:
        stages = [stage("align", "attention_output"), stage("kd", "kd", schedule={"kind": "constant"})]
        if last is not None:
            stages.append(stage("late", "kd", **last))
        return small_recipe(teacher_folder, stages=stages, **{"name": "small", **changes})

    return recipe


@pytest.fixture(scope="module")
def prefix(make: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the first two stages."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("prefix") / "out"
    distill(make(None, name="prefix"), out, quiet=True, device="cpu")
    return out


def losses(out: Path) -> list[tuple[Any, ...]]:
    return [
        (row["stage"], row["step"], row["loss"], row["grad_norm"])
        for row in read_jsonl(out / "metrics.jsonl")
    ]


@pytest.mark.parametrize("last", [{}, {"seq_len": 32, "batch_size": 4, "lr": 1e-4, "loss": {"kl": 1.0}}])
def test_a_branch_equals_a_run_from_the_start(make, prefix, tmp_path, last):
    recipe = make(last)
    (whole,) = distill(recipe, tmp_path / "whole", quiet=True, device="cpu")
    (branch,) = distill(recipe, tmp_path / "branch", quiet=True, device="cpu", branch_from=prefix)
    assert losses(branch.parent) == losses(whole.parent)
    expected = load_file(whole / "model.safetensors")
    for name, tensor in load_file(branch / "model.safetensors").items():
        assert torch.equal(tensor, expected[name]), name


def test_a_state_between_stages_lacks_what_only_the_next_one_trains(make, tmp_path):
    """The first stage trains mixers only; what it left to the teacher is not in its state."""
    recipe = make(None)
    first = recipe.model_copy(update={"stages": recipe.stages[:1]})
    distill(first, tmp_path / "first", quiet=True, device="cpu")
    (whole,) = distill(recipe, tmp_path / "whole", quiet=True, device="cpu")
    (branch,) = distill(recipe, tmp_path / "branch", quiet=True, device="cpu", branch_from=tmp_path / "first")
    assert losses(branch.parent) == losses(whole.parent)
    expected = load_file(whole / "model.safetensors")
    for name, tensor in load_file(branch / "model.safetensors").items():
        assert torch.equal(tensor, expected[name]), name


def test_a_branch_resumes_without_the_prefix(make, prefix, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(prefix, copy)
    recipe = make({})
    distill(recipe, tmp_path / "branch", quiet=True, device="cpu", branch_from=copy)
    shutil.rmtree(copy)
    shutil.rmtree(tmp_path / "branch" / "gated_deltanet")
    distill(recipe, tmp_path / "branch", quiet=True, device="cpu", branch_from=copy)
    assert (tmp_path / "branch" / "gated_deltanet" / "lineage.json").exists()
    assert num_states(prefix / "state") == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"seed": 1},
            "recipe 'small' in seed; a branch can differ in stages that have not begun",
        ),
        ({"student": {"mixers": ["gla"]}}, r"differs from recipe 'small' in student\.mixers"),
    ],
)
def test_other_runs_are_refused_before_anything_is_written(make, prefix, tmp_path, changes, message):
    with pytest.raises(RunFolderError, match=message):
        distill(make({}, **changes), tmp_path / "out", quiet=True, device="cpu", branch_from=prefix)
    assert not (tmp_path / "out").exists()


def test_stages_that_have_begun_must_be_equal(make, prefix, tmp_path):
    recipe = make({})
    recipe = recipe.model_copy(update={"stages": [recipe.stages[0], recipe.stages[2]]})
    with pytest.raises(RunFolderError, match=r"in stages\.1\.name"):
        distill(recipe, tmp_path / "out", quiet=True, device="cpu", branch_from=prefix)
    fewer = recipe.model_copy(update={"stages": recipe.stages[:1]})
    with pytest.raises(RunFolderError, match="has begun stage 'kd', and recipe 'small' has 1 stage"):
        distill(fewer, tmp_path / "out", quiet=True, device="cpu", branch_from=prefix)


def test_folders_without_a_state_and_damaged_states_are_refused(make, prefix, tmp_path):
    for folder in (tmp_path / "missing", tmp_path):
        with pytest.raises(RunFolderError, match="there is no training state of a run to branch from"):
            distill(make({}), tmp_path / "out", quiet=True, device="cpu", branch_from=folder)
    damaged = tmp_path / "damaged"
    shutil.copytree(prefix, damaged)
    write_text(damaged / "state" / "000002" / "state.json", "{")
    with pytest.raises(CheckpointError, match="the training state is damaged"):
        distill(make({}), tmp_path / "out", quiet=True, device="cpu", branch_from=damaged)
    assert not (tmp_path / "out").exists()


def test_the_command_branches(prefix, make, tmp_path, capsys):
    from evalsuite.distill.recipe import write_recipe

    path = tmp_path / "small.yaml"
    write_text(path, write_recipe(make({})))
    options = ["--device", "cpu", "--quiet"]
    given = ["distill", str(path), "--branch-from", str(prefix), "--out", str(tmp_path / "out"), *options]
    assert main(given) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "out" / "gated_deltanet")
    stages = [stage for stage, *_ in losses(tmp_path / "out")]
    assert stages[::4] == ["align", "kd", "late"]
