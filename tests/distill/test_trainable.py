"""Trainable sets: exactly the selected parameters get gradients and updates."""

import pytest
import torch

from evalsuite.distill.objectives.end_to_end import KnowledgeDistillation
from evalsuite.distill.trainable import TRAINABLE_SETS, set_trainable
from evalsuite.distill.training.optim import no_weight_decay
from evalsuite.distill.training.train_step import StudentTrainState
from evalsuite.foundation import ConfigError
from evalsuite.models import build_student

MIXERS = ["gated_deltanet", "softmax", "gla"]
LAYERS = {"mixer": {0, 2}, "softmax": {1}}


def part_of(name: str) -> str:
    if "embed_tokens" in name or "lm_head" in name:
        return "embeddings"
    if ".mlp." in name:
        return "mlp"
    if ".self_attn." in name:
        layer = int(name.split(".")[2])
        if layer == 1:
            return "softmax"
        return "mixer_qk" if name.endswith(("q_proj.weight", "k_proj.weight")) else "mixer_rest"
    return "norms"


TRAINED = {
    "mixer_qk": {"mixer_qk"},
    "mixer": {"mixer_qk", "mixer_rest"},
    "no_softmax": {"mixer_qk", "mixer_rest", "mlp", "norms"},
    "no_mlp": {"mixer_qk", "mixer_rest", "softmax", "embeddings", "norms"},
    "no_softmax_no_mlp": {"mixer_qk", "mixer_rest", "norms"},
    "no_embeddings": {"mixer_qk", "mixer_rest", "softmax", "mlp", "norms"},
    "all": {"mixer_qk", "mixer_rest", "softmax", "embeddings", "mlp", "norms"},
}


def is_trained(name: str, which: str) -> bool:
    if which == "block":
        return name.startswith(("model.layers.0.", "model.layers.2."))
    return part_of(name) in TRAINED[which]


@pytest.fixture
def student(teacher):
    return build_student(teacher, MIXERS).train()


@pytest.mark.parametrize("which", TRAINABLE_SETS)
def test_each_set_selects_its_parameters(student, which):
    chosen = set_trainable(student, which)
    for name, parameter in student.named_parameters():
        assert is_trained(name, which) == parameter.requires_grad == (name in chosen), name


@pytest.mark.parametrize("which", TRAINABLE_SETS)
def test_frozen_parameters_have_no_gradient_and_do_not_change(student, teacher, which):
    train_state = StudentTrainState("s", student)
    train_state.begin_stage(
        KnowledgeDistillation(
            name="s", objective="kd", trainable=which, data="d", tokens=100, seq_len=10, batch_size=1, lr=1e-2
        )
    )
    before = {name: parameter.detach().clone() for name, parameter in student.named_parameters()}
    tokens = torch.randint(2, 900, (2, 24), generator=torch.Generator().manual_seed(0))
    student(input_ids=tokens, labels=tokens).loss.backward()
    for name, parameter in student.named_parameters():
        trained = is_trained(name, which)
        assert (parameter.grad is not None) == trained, name
        # The first factor of a low-rank gate has no gradient while the second one is zero.
        if trained and "gk_proj.0." not in name:
            assert parameter.grad.abs().max() > 0, name
    for optimizer in train_state.optimizers:
        optimizer.step()
    for name, parameter in student.named_parameters():
        moved = not torch.equal(parameter, before[name])
        assert moved == is_trained(name, which), name


def test_empty_and_unknown_sets_are_refused(teacher):
    student = build_student(teacher, "softmax")
    with pytest.raises(ConfigError, match="this student has no parameters in the set 'mixer'"):
        set_trainable(student, "mixer")
    with pytest.raises(ConfigError, match="did you mean 'mixer'"):
        set_trainable(student, "mixers")


def test_small_updates_accumulate_in_fp32_master_weights(student):
    """With bf16 parameters, AdamW updates below a relative size of 2^-8 would be rounded away."""
    train_state = StudentTrainState("s", student)
    optimizer = {"weight_decay": 0.0}
    train_state.begin_stage(
        KnowledgeDistillation(
            name="s", objective="kd", trainable="all", data="d", tokens=1000, seq_len=10, batch_size=1,
            lr=1e-5, schedule={"kind": "constant", "warmup_ratio": 0}, optimizer=optimizer,
        )
    )  # fmt: skip
    weight = student.model.norm.weight
    before = weight.detach().clone()
    for parameter in train_state.parameters.values():
        parameter.grad.fill_(1.0)
    for optimizer in train_state.optimizers:
        optimizer.step()
    torch.testing.assert_close(before - weight.detach(), torch.full_like(before, 1e-5), rtol=0.02, atol=0)


def test_learning_rates_and_weight_decay_depend_on_the_parameter(student):
    train_state = StudentTrainState("s", student)
    train_state.begin_stage(
        KnowledgeDistillation(
            name="s", objective="kd", data="d", tokens=100, seq_len=10, batch_size=1, lr=2e-3,
            backbone_lr=1e-4, optimizer={"weight_decay": 0.1},
        )
    )  # fmt: skip
    names = {id(parameter): name for name, parameter in student.named_parameters()}
    for optimizer in train_state.optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                part = part_of(names[id(parameter)])
                assert group["initial_lr"] == (2e-3 if part.startswith("mixer") else 1e-4)
                decays = names[id(parameter)] not in no_weight_decay(student)
                assert group["weight_decay"] == (0.1 if decays else 0.0)


def test_muon_updates_matrices_and_adamw_the_rest(student):
    train_state = StudentTrainState("s", student)
    train_state.begin_stage(
        KnowledgeDistillation(
            name="s", objective="kd", data="d", tokens=100, seq_len=10, batch_size=1, lr=2e-3,
            optimizer={"kind": "muon"},
        )
    )  # fmt: skip
    kinds = {
        id(parameter): type(optimizer).__name__
        for optimizer in train_state.optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    assert set(kinds) == {id(parameter) for parameter in student.parameters()}
    for name, parameter in student.named_parameters():
        matrix = parameter.ndim == 2 and name not in no_weight_decay(student)
        assert kinds[id(parameter)] == ("Muon" if matrix else "AdamW"), name
