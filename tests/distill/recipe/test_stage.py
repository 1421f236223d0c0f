"""Stages: each objective has its own settings, and another package adds one by one definition."""

import subprocess
import sys
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import pytest
import torch
import yaml
from pydantic import Field
from torch import Tensor

from evalsuite.distill.objectives.end_to_end import EndToEndStage
from evalsuite.distill.objectives.kl_and_cross_entropy import LossTokens
from evalsuite.distill.recipe import Recipe, load_recipe
from evalsuite.distill.recipe.stage import OBJECTIVES
from evalsuite.distill.training.run_folder import check_run_dir
from evalsuite.distill.training.trainer import distill
from evalsuite.foundation import ConfigError, RunFolderError, read_jsonl
from evalsuite.foundation.registry import Registry
from evalsuite.foundation.strict import parse
from tests.test_rooms import ROOT, imports


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("stage.mixer.loss.kl=2", r"unknown key 'stages.0.loss': it applies to objective kd or on_policy or"),
        ("stage.mixer.backbone_lr=1", r"'stages.0.backbone_lr': it applies to objective kd or on_policy or"),
        ("stage.kd.alignment_loss={}", r"'stages.2.alignment_loss': it applies to objective attention"),
        ("stage.mixer.alignment_loss.matrix_norm=mse", r"unknown key 'stages.0.alignment_loss.matrix_norm'"),
        ("stage.mixer.alignment_loss.square=true", r"alignment_loss.square'; did you mean 'squared'"),
        ("stage.kd.objective=null", r"'stages.2.objective' is required"),
        ("stage.kd.objective=kl", r"'stages.2.objective' = 'kl': unknown objective 'kl'; did you mean 'kd'"),
    ],
)  # fmt: skip
def test_a_setting_of_another_objective_is_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=r"pocket.yaml with --set.*" + message):
        load_recipe("pocket", [override])


class Imitation(EndToEndStage):
    """Cross-entropy to the teacher's most likely token, scaled by `weight`."""

    columns: ClassVar[tuple[str, ...]] = ("loss", "matches")

    objective: Literal["imitation"]
    weight: float = Field(default=1.0, gt=0)

    @property
    def runs_teacher(self) -> bool:
        return True

    def loss_columns(self, tokens: LossTokens) -> Sequence[Tensor]:
        assert tokens.teacher_hidden is not None
        assert tokens.teacher_head is not None
        chosen = tokens.teacher_head.logits(tokens.teacher_hidden).argmax(-1)
        logits = tokens.head.logits(tokens.hidden)
        losses = torch.nn.functional.cross_entropy(logits, chosen, reduction="none")
        return self.weight * (losses * tokens.weights).sum(), (logits.argmax(-1) == chosen).float().mean()


def test_an_objective_is_one_definition_and_one_registration(
    monkeypatch: pytest.MonkeyPatch, teacher_folder: Any, small_recipe: Any, stage: Any, tmp_path: Any
) -> None:
    registry: Registry[Any] = Registry("objective", validate=OBJECTIVES._validate)
    for name in OBJECTIVES:
        registry.add(name, OBJECTIVES[name])
    monkeypatch.setattr("evalsuite.distill.recipe.stage.OBJECTIVES", registry)
    value = stage("learn", "imitation", weight=3.0)
    with pytest.raises(ConfigError, match="unknown objective 'imitation'"):
        parse({**small_recipe(teacher_folder).model_dump(), "stages": [value]}, Recipe, "recipe")
    registry.register("imitation")(Imitation)
    recipe = small_recipe(teacher_folder, stages=[value])
    distill(recipe, tmp_path / "run", device="cpu", quiet=True)
    rows = list(read_jsonl(tmp_path / "run" / "metrics.jsonl"))
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert all(row["loss"] > 0 and 0 <= row["matches"] <= 1 and "kl" not in row for row in rows)
    recipe = Recipe.model_validate(recipe.model_dump())
    assert isinstance(recipe.stages[0], Imitation)
    assert recipe.stages[0].weight == 3


def test_a_plugin_that_is_no_objective_is_refused() -> None:
    with pytest.raises(TypeError, match=r"a class derived from evalsuite\.distill\.recipe\.stage\.Stage"):
        OBJECTIVES._validate(dict)  # type: ignore[misc, arg-type]


def test_a_run_folder_of_other_settings_names_the_version(
    teacher_folder: Any, small_recipe: Any, tmp_path: Any
) -> None:
    """Recipes that earlier versions saved hold every setting for every objective."""
    recipe = small_recipe(teacher_folder)
    value = recipe.model_dump(mode="json")
    value["stages"][0]["loss"] = {"kl": 1.0}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(value))
    with pytest.raises(RunFolderError, match=r"earlier version of evalsuite.*'stages.0.loss'"):
        check_run_dir(tmp_path, recipe)


def test_objectives_read_neither_data_nor_training() -> None:
    """Training reads objectives; an arrow back would be a circle."""
    above = {"data", "selection", "training"}
    for path in (ROOT / "distill" / "objectives").glob("*.py"):
        read = {name.split(".")[2] for name in imports(path) if name.startswith("evalsuite.distill.")}
        assert not read & above, path.name


def test_recipes_are_checked_without_torch() -> None:
    script = (
        "import sys\n"
        "from evalsuite.distill import known_recipes, load_recipe\n"
        "recipes = [load_recipe(name) for name in known_recipes()]\n"
        "assert {stage.columns[0] for recipe in recipes for stage in recipe.stages} == {'loss'}\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)
