"""`layer_gates` and `head_gates`: gates learned together, with frozen weights."""

import pytest
import torch

from evalsuite.distill.selection.gates import GatedStudent, train_gates
from evalsuite.distill.selection.hybrids import with_mixers_of
from evalsuite.distill.selection.selectors.head_ablation import without_heads
from evalsuite.foundation import ConfigError
from evalsuite.models import build_student
from tests.distill.selection.conftest import small_selector

EVERY = {False: range(3), True: range(12)}


@pytest.mark.parametrize("by_head", [False, True])
@torch.no_grad()
def test_open_gates_are_the_teacher_and_closed_ones_the_linear_mixers(context, by_head):
    student, ids = GatedStudent(context, by_head=by_head), context.held_out.batches[0].input_ids
    student.keep(EVERY[by_head])
    torch.testing.assert_close(student.model(ids).logits, context.teacher(ids).logits)
    student.keep([])
    linear = with_mixers_of(context.teacher, context.all_linear, range(3))
    torch.testing.assert_close(student.model(ids).logits, linear(ids).logits)
    assert not student.gates.any()


@torch.no_grad()
def test_one_open_gate_is_one_layer_or_head(context):
    ids = context.held_out.batches[0].input_ids
    student = GatedStudent(context, by_head=False)
    student.keep([1])
    hybrid = with_mixers_of(context.teacher, context.all_linear, [0, 2])
    torch.testing.assert_close(student.model(ids).logits, hybrid(ids).logits)
    student = GatedStudent(context, by_head=True)
    student.keep([4, 6])
    mixer = student.model.model.layers[1].self_attn
    x = torch.randn(1, 9, 32)
    angles = context.teacher.model.rotary_emb(x, torch.arange(9)[None])
    alone = without_heads(context.teacher, 1, [1, 3]).model.layers[1].self_attn
    torch.testing.assert_close(mixer.softmax(x, angles)[0], alone(x, angles)[0])
    linear = context.all_linear.model.layers[1].self_attn
    columns = linear.o_proj.weight.unflatten(1, (4, -1)).clone()
    columns[:, [0, 2]] = 0
    mixed = linear.norm_and_gate(linear.recurrence((layer := linear.prepare(x, angles)).inputs)[0], layer)
    torch.testing.assert_close(mixer.recurrent(x, angles)[0], mixed @ columns.flatten(1).T)


def test_gates_alone_are_trained_and_a_penalty_closes_them(context):
    stage = context.kd_stage.model_copy(update={"tokens": 8 * context.kd_stage.tokens_per_step})
    found = {}
    for penalty in (0.0, 1000.0):
        student = GatedStudent(context, by_head=True)
        before = {name: p.clone() for name, p in student.model.named_parameters() if "logits" not in name}
        train_gates(context, student, stage, lr=0.3, penalty=penalty)
        after = dict(student.model.named_parameters())
        assert all(torch.equal(value, after[name]) for name, value in before.items())
        found[penalty] = student.gates.detach()
        kl = context.held_out.kl(student.model)
        student.keep([])
        if not penalty:
            assert kl < context.held_out.kl(student.model)
    assert found[1000.0].max() < 0.3
    assert found[0.0].mean() > 0.5


@torch.no_grad()
def quiet_layers(context):
    """Make attention and recurrence add nothing in layers 0 and 2, and attention much in layer 1."""
    for layer in (0, 2):
        for model in (context.teacher, context.all_linear):
            model.model.layers[layer].self_attn.o_proj.weight.zero_()
    context.teacher.model.layers[1].self_attn.o_proj.weight.mul_(8)


@pytest.mark.parametrize("name", ["layer_gates", "head_gates"])
def test_only_gates_that_save_divergence_stay_open(context, name):
    quiet_layers(context)
    found = small_selector(name, tokens=16 * context.kd_stage.tokens_per_step, lr=0.3).select(context, 1)
    scores = [min(own) for own in found.head_scores] or list(found.scores)
    others = [max(own) for own in found.head_scores] or list(found.scores)
    assert scores[1] > max(others[0], others[2])
    assert found.layers == (1,) or list(found.heads) == [1]


def test_what_cannot_be_gated_is_refused(context):
    context.all_linear = context.prepare(build_student(context.teacher, "sliding_window"))
    with pytest.raises(ConfigError, match="layer 0: sliding_window is no recurrent mixer"):
        GatedStudent(context, by_head=False)
    wide = build_student(context.teacher, "gla", options={"gla": {"num_heads": 2}})
    context.all_linear = context.prepare(wide)
    with pytest.raises(ConfigError, match="layer 0: gla has 2 heads, the teacher 4; remove"):
        GatedStudent(context, by_head=True)


def test_selections_state_the_divergence_of_what_they_keep(context):
    for name, count in (("layer_gates", 3), ("head_gates", 12)):
        found = small_selector(name, tokens=512).select(context, 2)
        scores = found.scores or tuple(each for own in found.head_scores for each in own)
        assert len(scores) == count
        details = found.details
        assert 0 < details["mean_gate"] < 1
        assert details["selected_kl"] < details["linear_kl"]
        assert found.cost.student_tokens == 512
