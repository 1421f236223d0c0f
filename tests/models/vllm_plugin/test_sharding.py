"""Ranks that share a mixer's heads give, added up, what the whole mixer gives."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from evalsuite.foundation import CheckpointError, ConfigError
from evalsuite.models import MIXERS, StudentForCausalLM
from evalsuite.models.mixers import Mixer
from evalsuite.models.vllm_plugin.sharding import load_share, local_mixer

RECURRENT = sorted(name for name, kind in MIXERS.items() if issubclass(kind, Mixer))


def angles(mixer: Mixer, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    rates = 100.0 ** -(torch.arange(0, mixer.head_dim, 2) / mixer.head_dim)
    both = torch.cat([torch.arange(length)[:, None] * rates] * 2, -1)[None]
    return both.cos(), both.sin()


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("name", RECURRENT)
def test_shares_add_up(name: str, ranks: int, make_student: Callable[..., StudentForCausalLM]) -> None:
    whole = make_student(name, output_norm="rms").model.layers[0].self_attn
    whole.o_proj.bias = torch.nn.Parameter(torch.randn(whole.geometry.hidden), requires_grad=False)
    whole.geometry = replace(whole.geometry, o_bias=True)
    torch.manual_seed(0)
    x = torch.randn(2, 20, whole.geometry.hidden)
    wanted = whole(x, position_embeddings=angles(whole, 20))[0]
    total = torch.zeros_like(wanted)
    for rank in range(ranks):
        local = local_mixer(whole, ranks).requires_grad_(False)
        load_share(local, whole, rank, whole.state_dict())
        assert local.state_shapes()["recurrent"][0] * ranks == whole.state_shapes()["recurrent"][0]
        total += local(x, position_embeddings=angles(whole, 20))[0]
    torch.testing.assert_close(total, wanted, atol=1e-5, rtol=1e-4)


def test_key_heads_are_shared_too(make_student: Callable[..., StudentForCausalLM]) -> None:
    whole = make_student("gated_deltanet", expand_kv=False).model.layers[0].self_attn
    assert whole.kv_heads == 2
    x = torch.randn(1, 9, whole.geometry.hidden)
    total = 0
    for rank in range(2):
        local = local_mixer(whole, 2)
        load_share(local, whole, rank, whole.state_dict())
        total = total + local(x)[0]
    torch.testing.assert_close(total, whole(x)[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "ranks", "message"),
    [
        ({}, 3, r"tensor_parallel_size = 3: gla has 4 heads, which do not divide; it can be 1, 2, 4"),
        ({"expand_kv": False}, 4, r"gla has 2 key and value heads, which do not divide; it can be 1, 2$"),
    ],
)
def test_heads_that_do_not_divide_are_refused(
    options: dict[str, bool], ranks: int, message: str, make_student: Callable[..., StudentForCausalLM]
) -> None:
    with pytest.raises(ConfigError, match=message):
        local_mixer(make_student("gla", **options).model.layers[0].self_attn, ranks)


def test_tensors_that_do_not_fit_are_named(make_student: Callable[..., StudentForCausalLM]) -> None:
    whole = make_student("gla").model.layers[0].self_attn
    tensors = whole.state_dict()
    without = {name: tensor for name, tensor in tensors.items() if name != "decay.down.weight"}
    with pytest.raises(CheckpointError, match=r"layer 0, gla: missing \['decay.down.weight'\], unknown \[\]"):
        load_share(whole, whole, 0, without)
    with pytest.raises(CheckpointError, match=r"unknown \['a_proj.weight'\]"):
        load_share(whole, whole, 0, {**tensors, "a_proj.weight": torch.zeros(1)})
    with pytest.raises(CheckpointError, match=r"layer 0: q_proj.weight is \(3, 32\), the config says"):
        load_share(whole, whole, 0, {**tensors, "q_proj.weight": torch.zeros(3, 32)})
