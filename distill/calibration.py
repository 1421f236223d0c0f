"""Initial values of students from statistics of the teacher on a few sequences, before the first stage."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from evalsuite.foundation import nearest
from evalsuite.foundation.strict import Strict

if TYPE_CHECKING:
    import torch

    from evalsuite.distill.recipe import Recipe
    from evalsuite.distill.training.builders import TrainingModels

CALIBRATED = "gated_deltanet"
"""The mixer that the method fits."""
TEACHER_MIXERS = ("softmax", "sliding_window")
"""Mixers that are the teacher's own attention."""


class CalibrationConfig(Strict):
    """Taylor-Calibrate (arXiv 2606.16429); see `evalsuite.models.mixers.taylor_calibration`.

    The method sets new students of Gated DeltaNet, after the teacher's projections have been copied. The
    alignment that follows in the paper is a stage with objective `attention_output`.
    """

    method: Literal["taylor"]
    """`taylor`."""
    data: str
    """Source of the sequences, read from its start; the stages read it, too."""
    num_sequences: int = Field(default=4, ge=1)
    """Number of sequences; 4 of 256 tokens in the authors' code."""
    seq_len: int = Field(default=256, ge=2)
    """Tokens per sequence; the matrix of one layer at a time grows with its square."""


def calibration_problem(recipe: "Recipe") -> str | None:
    """Why the recipe's students cannot be calibrated, with the way out; None if they can."""
    student = recipe.student
    calibration = student.calibration
    if calibration is None:
        return None
    where = "student.calibration"
    if recipe.teacher is None:
        return f"{where} needs a 'teacher'"
    if calibration.data not in recipe.data:
        known = nearest(calibration.data, recipe.data)
        return f"{where}.data: source '{calibration.data}' is not defined{known}"
    students = [student.of(label) for label in student.mixers]
    names = [name for each in students for name in (*each.mixers, *each.layers)]
    if other := [name for name in names if name not in (CALIBRATED, *TEACHER_MIXERS)]:
        return (
            f"{where}: method taylor fits {CALIBRATED}, not {other[0]}; remove the calibration, or this mixer"
        )
    if CALIBRATED not in names:
        return f"{where}: method taylor fits {CALIBRATED}, which no student has; remove the calibration"
    if student.initial_checkpoints:
        return f"{where} sets new students only; remove it, or 'student.initial_checkpoints'"
    if student.init not in ("qkvo", "qkv"):
        return (
            f"{where} starts from the teacher's queries, keys and values: set student.init: qkvo or qkv, not "
            f"{student.init}"
        )
    return None


def calibrate_students(
    recipe: "Recipe",
    models: "TrainingModels",
    device: "torch.device",
    broadcast: "Callable[[torch.Tensor], None]",
) -> None:
    """Set the initial values of the students as the recipe says, if it does, in place.

    Args:
        recipe: with sources that can be read (see `generate_responses`).
        models: on the device; the teacher's attention implementation is `eager` afterwards.
        broadcast: replaces a tensor by that of the first process, so that all processes start alike.

    Raises:
        ConfigError: mixer options that the method has no statistics for.
        DataError: the source has too few tokens.
    """
    import torch

    from evalsuite.distill.objectives.forward import teacher_hidden_states
    from evalsuite.distill.objectives.layer_activations import LayerActivations, each_layer
    from evalsuite.distill.types import MicroBatch
    from evalsuite.models.mixers.taylor_calibration import TeacherAttention, calibrate

    if recipe.student.calibration is None:
        return
    teacher, students = models.teacher, list(models.students.values())
    assert teacher is not None
    layers = {
        layer
        for student in students
        for layer, name in enumerate(student.config.mixers)
        if name == CALIBRATED
    }

    def set_values(layer: int, activations: LayerActivations) -> None:
        attention = teacher.model.layers[layer].self_attn
        values = attention.v_proj(activations.input).unflatten(-1, (-1, attention.head_dim))
        values = values.repeat_interleave(attention.num_key_value_groups, 2)
        context = torch.einsum("bhts,bshd->bthd", activations.attention.to(values.dtype), values)
        cos, sin = activations.position_embeddings
        record = TeacherAttention(
            activations.input, (cos.float(), sin.float()), activations.attention, context
        )
        for student in students:
            if student.config.mixers[layer] == CALIBRATED:
                mixer = student.model.layers[layer].self_attn
                calibrate(mixer, record)
                for parameter in mixer.parameters():
                    broadcast(parameter.data)

    ids = calibration_sequences(recipe, models.tokenizer).to(device)
    teacher.set_attn_implementation("eager")
    with torch.no_grad(), each_layer(teacher, layers, set_values):
        teacher_hidden_states(teacher, MicroBatch(ids, ids))


def calibration_sequences(recipe: "Recipe", tokenizer: Any) -> "torch.Tensor":
    """Token ids [B, T] from the start of the source, as one stream cut into sequences."""
    from evalsuite.distill.data.loader import StageDataLoader

    calibration = recipe.student.calibration
    assert calibration is not None
    batch, length = calibration.num_sequences, calibration.seq_len
    reading = recipe.stages[0].model_copy(
        update={
            "name": "calibration",
            "data": calibration.data,
            "tokens": batch * length,
            "seq_len": length,
            "batch_size": batch,
            "micro_batch_size": None,
            "packing": "concat",
            "loss_mask": "full",
            "restart_data": True,
        }
    )
    (micro_batch,) = next(StageDataLoader(recipe, reading, tokenizer)).micro_batches
    return micro_batch.input_ids
