"""Initial values of students from statistics of the teacher on a few sequences, before the first stage."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from evalsuite.distill.data.loader import DataSources, StageDataLoader
from evalsuite.distill.objectives.forward import hidden_states
from evalsuite.distill.recipe import CALIBRATED, Recipe
from evalsuite.distill.types import CausalLM, MicroBatch
from evalsuite.models.decoder.block import LayerActivations
from evalsuite.models.mixers.taylor_calibration import TeacherAttention, calibrate


def calibrate_students(
    recipe: Recipe,
    teacher: CausalLM | None,
    students: Mapping[str, CausalLM],
    tokenizer: Any,
    broadcast: Callable[[torch.Tensor], None],
) -> None:
    """Set the initial values of the students as the recipe says, if it does, in place.

    Args:
        recipe: with sources that can be read (see `generate_responses`).
        teacher: its attention implementation is `eager` afterwards; None only without a calibration.
        broadcast: replaces a tensor by that of the first process, so that all processes start alike.

    Raises:
        ConfigError: mixer options that the method has no statistics for.
        DataError: the source has too few tokens.
    """
    if recipe.student.calibration is None:
        return
    assert teacher is not None
    layers = {
        layer
        for student in students.values()
        for layer, name in enumerate(student.config.mixers)
        if name == CALIBRATED
    }

    def set_values(layer: int, activations: LayerActivations) -> None:
        if layer not in layers:
            return
        attention = teacher.model.layers[layer].self_attn
        values = attention.v_proj(activations.input).unflatten(-1, (-1, attention.head_dim))
        values = values.repeat_interleave(attention.num_key_value_groups, 2)
        assert activations.attention is not None
        context = torch.einsum("bhts,bshd->bthd", activations.attention.to(values.dtype), values)
        cos, sin = activations.position_embeddings
        record = TeacherAttention(
            activations.input, (cos.float(), sin.float()), activations.attention, context
        )
        for student in students.values():
            if student.config.mixers[layer] == CALIBRATED:
                mixer = student.model.layers[layer].self_attn
                calibrate(mixer, record)
                for parameter in mixer.parameters():
                    broadcast(parameter.data)

    ids = calibration_sequences(recipe, tokenizer).to(next(teacher.parameters()).device)
    teacher.set_attn_implementation("eager")
    with torch.no_grad():
        hidden_states(teacher, MicroBatch(ids, ids), observe=set_values)


def calibration_sequences(recipe: Recipe, tokenizer: Any) -> torch.Tensor:
    """Token ids [B, T] from the start of the source, as one stream cut into sequences."""
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
    sources = DataSources(recipe.data, tokenizer, seed=recipe.seed)
    (micro_batch,) = next(StageDataLoader(sources, reading)).micro_batches
    return micro_batch.input_ids
