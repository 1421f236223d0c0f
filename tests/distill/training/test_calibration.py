"""Calibration of new students from the teacher's attention, as a setting of recipes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from evalsuite.distill import Recipe, distill
from evalsuite.distill.objectives.forward import hidden_states
from evalsuite.distill.training.builders import build_models, override_mixers
from evalsuite.distill.training.calibration import calibrate_students, calibration_sequences
from evalsuite.distill.types import MicroBatch
from evalsuite.foundation import ConfigError, read_jsonl
from evalsuite.models import load_checkpoint
from evalsuite.models.decoder.block import LayerActivations

TAYLOR = {"method": "taylor", "data": "pocket", "num_sequences": 2, "seq_len": 64}
CHANGED = ("a_proj.bias", "b_proj.weight", "v_proj.weight")


def layer_errors(recipe: Recipe, *, calibrated: bool) -> torch.Tensor:
    """Relative squared error of each layer's output on sequences besides those of the calibration."""
    models = build_models(recipe, torch.device("cpu"))
    assert models.teacher is not None
    if calibrated:
        calibrate_students(recipe, models.teacher, models.students, models.tokenizer, lambda tensor: None)
    assert recipe.student.calibration is not None
    more = recipe.student.calibration.model_copy(update={"num_sequences": 8})
    student = recipe.student.model_copy(update={"calibration": more})
    ids = calibration_sequences(recipe.model_copy(update={"student": student}), models.tokenizer)[4:]
    (model,) = models.students.values()
    batch, errors = MicroBatch(ids, ids), {}

    def compare(layer: int, activations: LayerActivations) -> None:
        found, _ = model.model.layers[layer].mix(activations.input, activations.context)
        errors[layer] = (found - activations.output).square().sum() / activations.output.square().sum()

    with torch.no_grad():
        hidden_states(models.teacher, batch, observe=compare)
    return torch.stack([errors[layer] for layer in sorted(errors)])


@pytest.mark.parametrize("preset", ["house", "native"])
def test_calibrated_students_start_nearer_to_the_pocket_teacher(small_recipe: Any, preset: str) -> None:
    options = {"gated_deltanet": {"preset": preset}}
    calibration = {"method": "taylor", "data": "pocket"}
    recipe = small_recipe("pocket", student={"options": options, "calibration": calibration})
    default, calibrated = (layer_errors(recipe, calibrated=each) for each in (False, True))
    # On average: a single layer of random gates can be nearer by chance.
    assert calibrated.mean() < 0.95 * default.mean(), (default, calibrated)


def test_a_calibrated_hybrid_is_trained_and_its_recipe_says_so(
    teacher_folder: Path, small_recipe: Any, stage: Any, tmp_path: Path
) -> None:
    student = {"mixers": ["gated_deltanet"], "softmax_layers": [0], "layers": {"sliding_window": [1]}}
    stages = [stage("kd", "kd", tokens=128, lr=1e-9)]
    folders = {}
    for name, calibration in (("plain", None), ("taylor", TAYLOR)):
        recipe = small_recipe(
            teacher_folder, student={**student, "calibration": calibration}, stages=stages, seed=1
        )
        (folders[name],) = distill(recipe, tmp_path / name, device="cpu", quiet=True)
        folders[name, "hash"] = recipe.hash
    assert folders["plain", "hash"] != folders["taylor", "hash"]
    plain, taylor = (load_checkpoint(str(folders[name])).model.state_dict() for name in ("plain", "taylor"))
    changed = {name for name in plain if (plain[name] - taylor[name]).abs().max() > 1e-6}
    assert changed == {f"model.layers.2.self_attn.{name}" for name in CHANGED}
    assert "method: taylor" in (tmp_path / "taylor" / "recipe.yaml").read_text()
    assert all(row["loss"] > 0 for row in read_jsonl(tmp_path / "taylor" / "metrics.jsonl"))


@pytest.mark.parametrize(
    ("student", "message"),
    [
        ({"mixers": ["gla"]}, "fits gated_deltanet, not gla; remove the calibration, or this mixer"),
        ({"layers": {"kda": [0]}}, "fits gated_deltanet, not kda"),
        ({"mixers": ["softmax"]}, "fits gated_deltanet, which no student has"),
        ({"init": "random"}, "set student.init: qkvo or qkv, not random"),
        ({"initial_checkpoints": {"gated_deltanet": "x"}}, "remove it, or 'student.initial_checkpoints'"),
        ({"calibration": {**TAYLOR, "data": "pockets"}}, "source 'pockets' is not defined.*pocket"),
        ({"calibration": {**TAYLOR, "method": "tailor"}}, "'taylor'"),
        ({"calibration": {**TAYLOR, "seq_len": 1}}, "greater than or equal to 2"),
    ],
)
def test_calibrations_without_meaning_are_refused(small_recipe: Any, student: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        small_recipe("pocket", student={"calibration": TAYLOR, **student})


def test_other_mixers_on_the_command_line_are_refused(small_recipe: Any) -> None:
    recipe = small_recipe("pocket", student={"calibration": TAYLOR})
    with pytest.raises(ConfigError, match="fits gated_deltanet, not mlstm"):
        override_mixers(recipe, ["mlstm"])


def test_options_without_statistics_are_refused_before_training(small_recipe: Any, tmp_path: Path) -> None:
    options = {"gated_deltanet": {"window": 8}}
    recipe = small_recipe("pocket", student={"options": options, "calibration": TAYLOR})
    with pytest.raises(ConfigError, match="layer 0: calibration taylor has no statistics for window = 8"):
        distill(recipe, tmp_path / "out", device="cpu", quiet=True)
