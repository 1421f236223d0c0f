"""Mixers with the preset `native` equal the papers' layers."""

import pytest
import torch
from torch import Tensor, nn
from transformers import Mamba2Config, xLSTMConfig
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer
from transformers.models.xlstm.modeling_xlstm import xLSTMLayer

from evalsuite.models.mixers import MIXERS, RecurrentMixer, make_mixer
from tests.models.mixers.native_references import REFERENCES

HIDDEN, HEADS, WIDTH = 24, 3, 8


class Attention(nn.Module):
    """Attention without groups, biases or norms, as in fla's layers."""

    def __init__(self) -> None:
        super().__init__()
        self.head_dim = WIDTH
        for letter in "qkv":
            setattr(self, f"{letter}_proj", nn.Linear(HIDDEN, HEADS * WIDTH, bias=False))
        self.o_proj = nn.Linear(HEADS * WIDTH, HIDDEN, bias=False)


def make(name: str, layer: int = 0, scale: float = 0.3, **options: object) -> RecurrentMixer:
    torch.manual_seed(layer + 1)
    mixer = make_mixer(
        name, Attention(), {"preset": "native", **options}, layer=layer, norm_eps=1e-5, window=None
    )
    assert isinstance(mixer, RecurrentMixer)
    mixer.reset_parameters()
    for parameter in mixer.parameters():
        parameter.data += scale * torch.randn_like(parameter)
    return mixer.requires_grad_(False)


def angles(length: int, base: float | None) -> tuple[Tensor, Tensor]:
    """cos and sin [1, T, D] of a rotary embedding; of angle zero without a base."""
    rates = torch.zeros(WIDTH // 2) if base is None else base ** -(torch.arange(WIDTH // 2) * 2 / WIDTH)
    angle = torch.cat([torch.arange(length).unsqueeze(-1) * rates] * 2, -1).unsqueeze(0)
    return angle.cos(), angle.sin()


def output(mixer: RecurrentMixer, x: Tensor, base: float | None = None) -> Tensor:
    return mixer(x.unsqueeze(0), position_embeddings=angles(x.shape[0], base))[0][0]


@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_native_mixers_equal_their_references(name: str) -> None:
    assert set(REFERENCES) == {n for n, kind in MIXERS.items() if issubclass(kind, RecurrentMixer)}
    mixer, x = make(name), torch.randn(21, HIDDEN, generator=torch.Generator().manual_seed(0))
    found = output(mixer, x, 10000.0 if name == "retnet" else None)
    wanted = REFERENCES[name](mixer.state_dict(), HEADS, x)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert wanted.norm() > 1


def test_retnet_rotates_other_heads_by_a_base_of_its_own() -> None:
    mixer, x = make("retnet", num_heads=4, rotary_base=10000.0), torch.randn(21, HIDDEN)
    positions = mixer.position_embeddings(angles(21, 500.0), torch.arange(21)[None])
    found = mixer(x.unsqueeze(0), position_embeddings=positions)[0][0]
    torch.testing.assert_close(found, REFERENCES["retnet"](mixer.state_dict(), 4, x), rtol=1e-5, atol=1e-5)


def test_hgrn2_lower_bounds_accumulate_over_layers() -> None:
    """fla's HGRN2Model: lower_bounds.softmax(0).cumsum(0) − its first row, 0 in the first layer."""
    mixers = [make("hgrn2", layer) for layer in range(3)]
    for mixer in mixers:
        mixer.link_layers([nn.Identity(), *mixers])
    rows = torch.stack([mixer.lower_bounds for mixer in mixers]).softmax(0).cumsum(0)
    x = torch.randn(1, 7, HIDDEN)
    for layer, mixer in enumerate(mixers):
        inputs = mixer.prepare(x).inputs
        bound = rows[layer] - rows[0]
        alpha = bound + (1 - bound) * torch.sigmoid(-mixer.split_heads(mixer.k_proj(x)))
        torch.testing.assert_close(inputs.log_decay.exp(), alpha, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(inputs.k, 1 - alpha, rtol=1e-5, atol=1e-5)


def test_native_mlstm_equals_transformers_xlstm_layer() -> None:
    """The layer of xLSTM-7B in transformers, whose state carries the stabilizer m."""
    config = xLSTMConfig(
        hidden_size=HIDDEN, num_heads=HEADS, qk_dim_factor=1.0, v_dim_factor=1.0, norm_eps=1e-5,
        mode="inference", autocast_kernel_dtype="float32", num_hidden_layers=1, vocab_size=10,
    )  # fmt: skip
    layer, mixer = xLSTMLayer(config), make("mlstm")
    names = {
        "q": "q_proj", "k": "k_proj", "v": "v_proj", "ogate_preact": "g_proj", "igate_preact": "i_proj",
        "fgate_preact": "f_proj", "multihead_norm": "o_norm", "out_proj": "o_proj",
    }  # fmt: skip
    for name, module in layer.named_children():
        if name in names:
            module.load_state_dict(mixer.get_submodule(names[name]).state_dict())
    x = torch.randn(21, HIDDEN, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(output(mixer, x), layer(x.unsqueeze(0))[0][0], rtol=1e-5, atol=1e-5)


def test_native_mamba2_equals_transformers_mixer() -> None:
    """transformers' Mamba2Mixer with a B and C per head and, as in fla, one norm over all of them."""
    config = Mamba2Config(
        hidden_size=HIDDEN, num_heads=HEADS, head_dim=WIDTH, state_size=WIDTH, n_groups=HEADS, expand=1,
        use_conv_bias=False, use_bias=False, layer_norm_epsilon=1e-5, chunk_size=8, vocab_size=10,
    )  # fmt: skip
    layer, mixer = Mamba2Mixer(config, 0), make("mamba2")
    layer.norm.group_size = HIDDEN
    w = mixer.state_dict()
    # in_proj: gate | x | B | C | Δ; conv1d: x | B | C.
    projections = [w[f"{name}_proj.weight"] for name in ("g", "v", "k", "q", "a")]
    layer.load_state_dict(
        {
            "in_proj.weight": torch.cat(projections),
            "conv1d.weight": torch.cat([w[f"{letter}_conv1d.weight"] for letter in "vkq"]),
            "dt_bias": w["a_proj.bias"],
            "A_log": w["A_log"],
            "D": w["D"],
            "norm.weight": w["o_norm.weight"],
            "out_proj.weight": w["o_proj.weight"],
        }
    )
    x = torch.randn(21, HIDDEN, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(output(mixer, x), layer(x.unsqueeze(0))[0], rtol=1e-5, atol=1e-5)
