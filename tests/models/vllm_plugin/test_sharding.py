"""The outputs of a mixer's tensor-parallel shards sum to the output of the full mixer."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from evalsuite.foundation import CheckpointError, ConfigError
from evalsuite.models import MIXERS, StudentForCausalLM, build_student
from evalsuite.models.mixers import RecurrentMixer
from evalsuite.models.vllm_plugin.sharding import load_sharded_weights, local_mixer

RECURRENT = sorted(name for name, kind in MIXERS.items() if kind.served_as == "recurrence")


def angles(mixer: RecurrentMixer, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    rates = 100.0 ** -(torch.arange(0, mixer.head_dim, 2) / mixer.head_dim)
    both = torch.cat([torch.arange(length)[:, None] * rates] * 2, -1)[None]
    return both.cos(), both.sin()


@pytest.mark.parametrize("tp_size", [1, 2, 4])
@pytest.mark.parametrize("name", RECURRENT)
def test_shards_sum_to_the_full_mixer(
    name: str, tp_size: int, make_student: Callable[..., StudentForCausalLM]
) -> None:
    full = make_student(name, output_norm="rms").model.layers[0].self_attn
    full.o_proj.bias = torch.nn.Parameter(torch.randn(full.attention_shape.hidden_size), requires_grad=False)
    full.attention_shape = replace(full.attention_shape, o_bias=True)
    torch.manual_seed(0)
    x = torch.randn(2, 20, full.attention_shape.hidden_size)
    wanted = full(x, position_embeddings=angles(full, 20))[0]
    total = torch.zeros_like(wanted)
    for rank in range(tp_size):
        local = local_mixer(full, tp_size).requires_grad_(False)
        load_sharded_weights(local, full, rank, full.state_dict())
        assert local.state_shapes()["recurrent"][0] * tp_size == full.state_shapes()["recurrent"][0]
        total += local(x, position_embeddings=angles(full, 20))[0]
    torch.testing.assert_close(total, wanted, atol=1e-5, rtol=1e-4)


def test_grouped_key_heads_are_sharded(make_student: Callable[..., StudentForCausalLM]) -> None:
    full = make_student("gated_deltanet", expand_kv=False).model.layers[0].self_attn
    assert full.num_kv_heads == 2
    x = torch.randn(1, 9, full.attention_shape.hidden_size)
    total = 0
    for rank in range(2):
        local = local_mixer(full, 2)
        load_sharded_weights(local, full, rank, full.state_dict())
        total = total + local(x)[0]
    torch.testing.assert_close(total, full(x)[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("options", [{}, {"expand_kv": False}])
def test_one_rank_has_the_heads_that_the_mixer_has(options: dict[str, bool], make_teacher: Any) -> None:
    student = build_student(make_teacher(), "gla", options={"gla": {"num_heads": 2, **options}})
    full = student.model.layers[0].self_attn
    local = local_mixer(full, 1)
    load_sharded_weights(local, full, 0, full.state_dict())
    x = torch.randn(1, 9, full.attention_shape.hidden_size)
    torch.testing.assert_close(local(x)[0], full(x)[0])


@pytest.mark.parametrize(
    ("options", "tp_size", "message"),
    [
        ({}, 3, r"tensor_parallel_size = 3: gla has 4 heads, which do not divide; it can be 1, 2, 4"),
        ({"expand_kv": False}, 4, r"gla has 2 key and value heads, which do not divide; it can be 1, 2$"),
    ],
)
def test_heads_that_do_not_divide_are_rejected(
    options: dict[str, bool], tp_size: int, message: str, make_student: Callable[..., StudentForCausalLM]
) -> None:
    with pytest.raises(ConfigError, match=message):
        local_mixer(make_student("gla", **options).model.layers[0].self_attn, tp_size)


def test_wrong_tensors_are_named(make_student: Callable[..., StudentForCausalLM]) -> None:
    full = make_student("gla").model.layers[0].self_attn
    tensors = full.state_dict()
    without = {name: tensor for name, tensor in tensors.items() if name != "gk_proj.0.weight"}
    with pytest.raises(CheckpointError, match=r"layer 0, gla: missing \['gk_proj.0.weight'\], unknown \[\]"):
        load_sharded_weights(full, full, 0, without)
    with pytest.raises(CheckpointError, match=r"unknown \['a_proj.weight'\]"):
        load_sharded_weights(full, full, 0, {**tensors, "a_proj.weight": torch.zeros(1)})
    with pytest.raises(CheckpointError, match=r"layer 0: q_proj.weight is \(3, 32\), the config says"):
        load_sharded_weights(full, full, 0, {**tensors, "q_proj.weight": torch.zeros(3, 32)})
