"""What is estimated of a stage's memory is what models, gradients and optimizer states take."""

from typing import Any

import pytest
import torch

from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.training.builders import build_models
from evalsuite.distill.training.distributed import ProcessGroup
from evalsuite.distill.training.estimate import stage_memory
from evalsuite.distill.training.train_step import StudentTrainState, TrainStep
from evalsuite.distill.types import GlobalBatch, MicroBatch
from evalsuite.models.decoder.cost import ModelCost

CPU = torch.device("cpu")


def nbytes(tensors: Any) -> int:
    """Bytes of all storages, each counted once."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("trainable", ["all", "no_mlp", "block", "no_softmax", "no_embeddings", "mixer"])
def test_weights_gradients_and_states_take_what_is_estimated(
    teacher_folder: Any, small_recipe: Any, stage: Any, trainable: str, precision: str
) -> None:
    """Frozen weights are held once, with the teacher's."""
    recipe = small_recipe(
        teacher_folder,
        student={"softmax_layers": [1]},
        precision=precision,
        stages=[stage("kd", "kd", trainable=trainable)],
    )
    settings: Stage = recipe.stages[0]
    models = build_models(recipe, CPU, share_frozen=True)
    (model,) = models.students.values()
    assert models.teacher is not None
    train_state = StudentTrainState("s", model, models.dtype, [trainable])
    train_state.begin_stage(settings)
    before = {name: value.clone() for name, value in models.teacher.named_parameters()}
    tokens = torch.arange(8, 40).view(2, 16)
    step = TrainStep(models.teacher, [train_state], settings, ProcessGroup("cpu"))
    step(GlobalBatch([MicroBatch(tokens, tokens)], 32, 32, {}), 0)
    assert train_state.flat_grads is not None
    tensors = [
        *model.parameters(),
        *train_state.master_weights.params.values(),
        train_state.flat_grads.buffer,
    ]
    tensors += [*train_state.optimizer_state().values(), *models.teacher.parameters()]
    teacher, student = ModelCost.of(models.teacher.config), ModelCost.of(model.config)
    expected = stage_memory(teacher, [student], settings, bf16=precision == "bf16")
    expected -= settings.activation_bytes(student, 2 if precision == "bf16" else 4)
    assert nbytes(tensors) == pytest.approx(expected, rel=0.01)
    for name, value in models.teacher.named_parameters():
        assert torch.equal(value, before[name])


def test_only_equal_frozen_weights_are_shared(teacher_folder: Any, small_recipe: Any, stage: Any) -> None:
    stages = [stage("a", "attention_output"), stage("kd", "kd", trainable="no_mlp")]
    recipe = small_recipe(teacher_folder, student={"softmax_layers": [1]}, stages=stages)

    def shared(changes: dict[str, Any], *, share_frozen: bool = True) -> set[str]:
        student = recipe.student.model_copy(update=changes)
        changed = recipe.model_copy(update={"student": student, "seed": 1})
        models = build_models(changed, CPU, share_frozen=share_frozen)
        assert models.teacher is not None
        theirs = {parameter.data_ptr() for parameter in models.teacher.parameters()}
        (model,) = models.students.values()
        return {name for name, parameter in model.named_parameters() if parameter.data_ptr() in theirs}

    assert {name.split(".")[3] for name in shared({})} == {"mlp"}
    assert len(shared({})) == 9
    assert not shared({"init": "scratch"})
    assert not shared({}, share_frozen=False)
