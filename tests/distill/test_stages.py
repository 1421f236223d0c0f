"""Frozen sets have no gradient and do not move; trained sets do, stage by stage."""

import pytest
import torch

from evalsuite.distill.recipe import Stage
from evalsuite.distill.stages import SETS, trained_parameters
from evalsuite.distill.step import Trainee
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
    "all": {"mixer_qk", "mixer_rest", "softmax", "embeddings", "mlp", "norms"},
}


@pytest.fixture
def student(teacher):
    return build_student(teacher, MIXERS).train()


@pytest.mark.parametrize("which", SETS)
def test_each_set_holds_what_its_name_says(student, which):
    chosen = trained_parameters(student, which)
    for name, parameter in student.named_parameters():
        assert (part_of(name) in TRAINED[which]) == parameter.requires_grad == (name in chosen), name


@pytest.mark.parametrize("which", SETS)
def test_gradients_are_none_exactly_where_frozen(student, teacher, which):
    trainee = Trainee("s", student)
    trainee.enter(
        Stage(name="s", objective="kd", train=which, data="d", tokens=100, length=10, batch=1, lr=1e-2)
    )
    before = {name: parameter.detach().clone() for name, parameter in student.named_parameters()}
    tokens = torch.randint(2, 900, (2, 24), generator=torch.Generator().manual_seed(0))
    student(input_ids=tokens, labels=tokens).loss.backward()
    for name, parameter in student.named_parameters():
        trained = part_of(name) in TRAINED[which]
        assert (parameter.grad is not None) == trained, name
        # The inner half of a low-rank gate waits for the outer half, which starts at zero.
        if trained and ".down." not in name:
            assert parameter.grad.abs().max() > 0, name
    for optimizer in trainee.optimizers:
        optimizer.step()
    for name, parameter in student.named_parameters():
        moved = not torch.equal(parameter, before[name])
        assert moved == (part_of(name) in TRAINED[which]), name


def test_an_empty_set_and_an_unknown_one_are_refused(teacher):
    student = build_student(teacher, "softmax")
    with pytest.raises(ConfigError, match="no parameter of this student is in the set 'mixer'"):
        trained_parameters(student, "mixer")
    with pytest.raises(ConfigError, match="did you mean 'mixer'"):
        trained_parameters(student, "mixers")


def test_a_small_update_survives_in_fp32_master_weights(student):
    """The defect of bf16 parameters under AdamW: a relative update below 2^-8 is rounded away."""
    trainee = Trainee("s", student)
    optimizer = {"weight_decay": 0.0}
    trainee.enter(
        Stage(
            name="s", objective="kd", train="all", data="d", tokens=1000, length=10, batch=1, lr=1e-5,
            schedule={"kind": "constant", "warmup": 0}, optimizer=optimizer,
        )
    )  # fmt: skip
    weight = student.model.norm.weight
    before = weight.detach().clone()
    for parameter in trainee.parameters.values():
        parameter.grad.fill_(1.0)
    for optimizer in trainee.optimizers:
        optimizer.step()
    torch.testing.assert_close(before - weight.detach(), torch.full_like(before, 1e-5), rtol=0.02, atol=0)


def test_rates_and_decay_follow_the_parameter(student):
    trainee = Trainee("s", student)
    trainee.enter(
        Stage(
            name="s", objective="kd", data="d", tokens=100, length=10, batch=1, lr=2e-3, lr_rest=1e-4,
            optimizer={"weight_decay": 0.1},
        )
    )  # fmt: skip
    names = {id(parameter): name for name, parameter in student.named_parameters()}
    for optimizer in trainee.optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                part = part_of(names[id(parameter)])
                assert group["peak"] == (2e-3 if part.startswith("mixer") else 1e-4)
                matrix = parameter.ndim == 2 and part != "embeddings" and "conv" not in names[id(parameter)]
                assert group["weight_decay"] == (0.1 if matrix else 0.0)


def test_muon_takes_matrices_and_leaves_the_rest_to_adamw(student):
    trainee = Trainee("s", student)
    trainee.enter(
        Stage(
            name="s", objective="kd", data="d", tokens=100, length=10, batch=1, lr=2e-3,
            optimizer={"kind": "muon"},
        )
    )  # fmt: skip
    kinds = {
        id(parameter): type(optimizer).__name__
        for optimizer in trainee.optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    assert set(kinds) == {id(parameter) for parameter in student.parameters()}
    for name, parameter in student.named_parameters():
        matrix = parameter.ndim == 2 and "embed" not in name and "conv" not in name
        assert kinds[id(parameter)] == ("Muon" if matrix else "AdamW"), name
