"""Weight decay and Muon reach the matrices of every mixer and nothing else."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from transformers import PreTrainedModel

from evalsuite.distill.objectives.end_to_end import KnowledgeDistillation
from evalsuite.distill.training.fsdp import shard
from evalsuite.distill.training.train_step import StudentTrainState
from evalsuite.foundation import ConfigError
from evalsuite.models import MIXERS, build_student

MATRICES = {
    *(f"{letter}_proj.weight" for letter in "qkvogabfiw"),
    # Both factors of low-rank projections.
    *(f"{name}_proj.{factor}.weight" for name in ("g", "gk", "f", "a") for factor in (0, 1)),
    *(f"w_proj.{factor}.weight" for factor in (0, 2)),
    "gk_proj.weight",
    "feature_proj",
    "gate_proj.weight",
    "up_proj.weight",
    "down_proj.weight",
}
"""Endings of the names of parameters that multiply activations as matrices. Everything else has an initial
value to stay near: biases and norms of gates, decay rates, feature-map norms, convolutions, embeddings."""


def is_matrix(name: str) -> bool:
    return any(name.endswith(f".{ending}") for ending in MATRICES)


def groups_of(student: PreTrainedModel, kind: str) -> dict[str, tuple[str, float]]:
    """Parameter name → (optimizer, weight decay)."""
    state = StudentTrainState("s", student)
    state.begin_stage(
        KnowledgeDistillation(
            name="s", objective="kd", trainable="all", data="d", tokens=100, seq_len=10, batch_size=1,
            lr=1e-3, optimizer={"weight_decay": 0.1, "kind": kind},
        )
    )  # fmt: skip
    names = {id(parameter): name for name, parameter in student.named_parameters()}
    return {
        names[id(parameter)]: (type(optimizer).__name__, group["weight_decay"])
        for optimizer in state.optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }


def test_sharding_refuses_mixers_that_read_other_layers(make_teacher: Callable[..., PreTrainedModel]) -> None:
    student = build_student(make_teacher(), "hgrn2", options={"hgrn2": {"preset": "native"}})
    with pytest.raises(ConfigError, match="hgrn2 with learned_lower_bounds = True cannot be sharded"):
        shard(SimpleNamespace(model=student), torch.device("cpu"), torch.float32, ())


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_only_matrices_decay(make_teacher: Callable[..., PreTrainedModel], kind: str) -> None:
    teacher = make_teacher("qwen3", layers=len(MIXERS), head_dim=16)
    student = build_student(teacher, list(MIXERS)).train()
    found = groups_of(student, kind)
    assert found.keys() == dict(student.named_parameters()).keys()
    for name, (optimizer, decay) in found.items():
        assert decay == (0.1 if is_matrix(name) else 0.0), name
        if optimizer == "Muon":
            # Muon orthogonalizes one matrix; a stack of feature maps stays with AdamW.
            assert is_matrix(name), name
            assert student.get_parameter(name).ndim == 2, name
    for ending in ("f_bias", "augment", "gamma", "beta", "A_log", "D", "a_proj.bias", "q_conv1d.weight"):
        assert any(name.endswith(ending) for name in found), ending
