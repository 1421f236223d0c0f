"""Layerwise objectives equal running the student's layers one by one on the teacher's activations."""

import pytest
import torch

from evalsuite.distill.objectives.layerwise import MatrixMixing
from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.training.distributed import ProcessGroup
from evalsuite.foundation import ConfigError
from evalsuite.foundation.strict import parse
from evalsuite.models import build_student
from evalsuite.models.mixers import Mixer
from tests.distill.stage_data import stage_data

OWN_POSITIONS = [
    ("sliding_window", {"window": 512, "rotary": False, "logit_scale_base": 8.0}),
    ("retnet", {"num_heads": 2, "rotary_base": 10000.0}),
]


def batch_of(small_recipe, stage, tokenizer, objective="attention_output", **changes):
    recipe = small_recipe("unused", stages=[stage("s", objective, **changes)])
    return recipe.stages[0], next(stage_data(recipe, tokenizer)).micro_batches[0]


def losses_of(teacher, students, batch, stage):
    """Losses [students] of one micro-batch; gradients are accumulated in the students."""
    losses = stage.start(teacher, students, batch.input_ids.device)
    masked = batch.loss_indices is not None
    losses.backward(batch, batch.loss_indices.numel() if masked else batch.input_ids.numel())
    return losses.reduce(ProcessGroup("cpu").all_reduce)[0][:, 0]


@pytest.mark.parametrize("packing", ["concat", "documents"])
@pytest.mark.parametrize("objective", ["attention_output", "hidden_state"])
def test_a_student_equal_to_its_teacher_has_zero_loss(
    teacher, tokenizer, small_recipe, stage, packing, objective
):
    """A sliding window wider than the sequence equals full softmax attention."""
    student = build_student(teacher, "sliding_window", options={"sliding_window": {"window": 512}})
    base, batch = batch_of(small_recipe, stage, tokenizer, objective, packing=packing)
    losses = losses_of(teacher, [student.requires_grad_(True)], batch, base)
    assert losses.item() == pytest.approx(0, abs=1e-2)


def test_a_narrow_window_has_positive_loss(teacher, tokenizer, small_recipe, stage):
    student = build_student(teacher, "sliding_window", options={"sliding_window": {"window": 4}})
    base, batch = batch_of(small_recipe, stage, tokenizer)
    assert losses_of(teacher, [student.requires_grad_(True)], batch, base).item() > 1e-2


def test_the_loss_equals_that_of_separate_layers(teacher, tokenizer, small_recipe, stage):
    student = build_student(teacher, ["gla", "softmax", "gated_deltanet"]).requires_grad_(True)
    base, batch = batch_of(small_recipe, stage, tokenizer)
    states = teacher.model(input_ids=batch.input_ids, output_hidden_states=True).hidden_states
    rotary = teacher.model.rotary_emb(states[0], torch.arange(batch.input_ids.shape[1])[None])
    mask = torch.ones(64, 64, dtype=torch.bool).tril()[None, None]
    expected = []
    for layer in (0, 2):
        block = teacher.model.layers[layer]
        inner = block.input_layernorm(states[layer])
        target = block.self_attn(hidden_states=inner, position_embeddings=rotary, attention_mask=mask)[0]
        own = student.model.layers[layer].self_attn(inner, rotary)[0]
        expected.append((own - target).square().sum(-1).mean())
    losses = losses_of(teacher, [student, student], batch, base)
    torch.testing.assert_close(losses, torch.stack(expected).mean().detach().expand(2), rtol=1e-4, atol=1e-6)


def test_only_mixers_get_gradients(teacher, tokenizer, small_recipe, stage):
    student = build_student(teacher, ["gla", "softmax", "gated_deltanet"]).requires_grad_(True)
    base, batch = batch_of(small_recipe, stage, tokenizer)
    losses_of(teacher, [student], batch, base)
    for name, parameter in student.named_parameters():
        mixer = ".self_attn." in name and ".1.self_attn." not in name
        assert (parameter.grad is not None) == mixer, name
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert not teacher.model.layers[0].self_attn._forward_hooks


def test_whole_blocks_train_with_their_norms(teacher, tokenizer, small_recipe, stage):
    """Copied norms give the teacher's input of the mixer, so that only the gradients differ."""
    found = {}
    for trainable in ("mixer", "block"):
        student = build_student(teacher, ["gla", "softmax", "gated_deltanet"]).requires_grad_(True)
        base, batch = batch_of(small_recipe, stage, tokenizer, "hidden_state", trainable=trainable)
        loss = losses_of(teacher, [student], batch, base)
        found[trainable] = loss, {name: value.grad for name, value in student.named_parameters()}
    (loss, grads), (expected, frozen) = found["block"], found["mixer"]
    torch.testing.assert_close(loss, expected)
    for name, grad in grads.items():
        replaced = name.startswith(("model.layers.0.", "model.layers.2."))
        assert (grad is not None) == replaced, name
        if ".self_attn." in name and replaced:
            torch.testing.assert_close(grad, frozen[name])
        elif "input_layernorm" in name:
            assert frozen[name] is None
    with pytest.raises(
        ConfigError, match="attention_output trains mixers only: 'trainable' must be mixer or"
    ):
        parse(stage("s", "attention_output", trainable="block"), Stage, "recipe")
    with pytest.raises(
        ConfigError, match="trains blocks only: 'trainable' must be mixer or mixer_qk or block"
    ):
        parse(stage("s", "hidden_state", trainable="all"), Stage, "recipe")


def test_matrices_of_other_numbers_of_heads_are_compared_by_their_means(
    teacher, tokenizer, small_recipe, stage
):
    teacher.set_attn_implementation("eager")
    mixing, batch = batch_of(small_recipe, stage, tokenizer, "matrix_mixing")
    students = [
        build_student(teacher, "mlstm", options={"mlstm": {"num_heads": heads}}).requires_grad_(True)
        for heads in (0, 2)
    ]
    losses = losses_of(teacher, students, batch, mixing)
    assert torch.isfinite(losses).all()
    assert (losses > 0).all()
    assert students[1].model.layers[0].self_attn.q_proj.weight.grad.abs().max() > 0


def test_matrix_mixing_compares_attention_matrices(teacher, tokenizer, small_recipe, stage):
    teacher.set_attn_implementation("eager")
    mixing, batch = batch_of(small_recipe, stage, tokenizer, "matrix_mixing")
    student = build_student(teacher, "retnet").requires_grad_(True)
    (loss,) = losses_of(teacher, [student], batch, mixing)
    assert loss.item() > 0
    grad = student.model.layers[0].self_attn.q_proj.weight.grad
    assert grad is not None
    assert grad.abs().max() > 0
    # The matrix does not depend on the values.
    values = student.model.layers[0].self_attn.v_proj.weight.grad
    assert values is None or not values.any()


@pytest.mark.parametrize("objective", ["attention_output", "matrix_mixing"])
@pytest.mark.parametrize(("name", "options"), OWN_POSITIONS)
def test_layers_keep_their_own_positions_in_the_teachers_pass(
    teacher, tokenizer, small_recipe, stage, objective, name, options
):
    teacher.set_attn_implementation("eager")
    base, batch = batch_of(small_recipe, stage, tokenizer, objective)
    student = build_student(teacher, name, options={name: options}).requires_grad_(True)
    places = torch.arange(batch.input_ids.shape[1])[None]
    distances = []

    def compare(layer, activations):
        mixer, x = student.model.layers[layer].self_attn, activations.input
        positions = mixer.position_embeddings(teacher.model.rotary_emb(x, places), places)
        if objective == "matrix_mixing":
            matrix, _ = mixer.attention_matrix(x, positions)
            target = activations.attention
            if matrix.shape != target.shape:
                matrix, target = matrix.mean(1, keepdim=True), target.mean(1, keepdim=True)
            difference = matrix - target
            distances.append(difference.square().sum((-2, -1)).sqrt().mean())
            return
        mask = activations.context.mask(layer, mixer)
        difference = mixer(x, positions, attention_mask=mask)[0] - activations.output
        distances.append(difference.square().sum(-1).mean())

    with torch.no_grad():
        teacher.model(batch.input_ids, observe=compare)
    loss = losses_of(teacher, [student], batch, base)
    torch.testing.assert_close(loss[0], torch.stack(distances).mean(), rtol=1e-4, atol=1e-6)


class Opaque(Mixer):
    """A mixer of another package that has no attention matrix."""


def test_matrix_mixing_refuses_layers_without_a_matrix(teacher, stage):
    student = build_student(teacher, ["gla", "softmax", "retnet"])
    mixing = MatrixMixing(**stage("mix", "matrix_mixing"))
    mixing.check_students({"s": student})
    student.model.layers[2].self_attn = Opaque()
    message = r"stage 'mix'.*layer 2 \(retnet\) of student 's'.*attention_output"
    with pytest.raises(ConfigError, match=message):
        mixing.check_students({"s": student})
