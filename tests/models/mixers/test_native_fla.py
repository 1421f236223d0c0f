"""Mixers with the preset `native` equal fla's layers on a GPU, weights copied."""

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from evalsuite.models.mixers import RecurrentMixer, make_mixer

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1200)]
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
pytest.importorskip("fla")

HEADS, WIDTH, HIDDEN = 4, 64, 256
# At most 64 tokens: without gradients, fla then runs the token-by-token kernels, in full float32.
LENGTH = 50
GATED_NORM = {"o_norm.weight": "g_norm_swish_gate.weight"}
ROWS: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "linear_attention": ("LinearAttention", {"feature_map": "elementwise_product"}, {"o_norm": "norm"}),
    "retnet": ("MultiScaleRetention", {"expand_v": 1.0}, GATED_NORM),
    "gla": ("GatedLinearAttention", {"expand_k": 1.0}, GATED_NORM),
    "deltanet": ("DeltaNet", {}, {}),
    "gated_deltanet": ("GatedDeltaNet", {"head_dim": WIDTH, "expand_v": 1.0}, {"a_proj.bias": "dt_bias"}),
    "kda": ("KimiDeltaAttention", {"head_dim": WIDTH}, {"f_proj.1.bias": "dt_bias"}),
    "gated_deltanet_2": ("GatedDeltaNet2", {"head_dim": WIDTH}, {"f_proj.1.bias": "dt_bias"}),
    "hgrn2": (
        "HGRN2Attention",
        {"expand_ratio": None},
        {"k_proj": "f_proj", "v_proj": "i_proj", "o_norm": "g_norm"},
    ),
}
"""Mixer → fla's layer, its arguments, and its names where they differ from ours. fla has no mLSTM or MetaLA;
its Mamba2 needs mamba_ssm, its ReBased has other widths, its Comba another order of norms, its RWKV-7
mixes tokens before the projections, and its MesaNet adds 1e-5 to divisors of conjugate gradients, so that its
solutions are off by 1e-3."""


class Attention(nn.Module):
    """Attention without groups, biases or norms, as in fla's layers."""

    def __init__(self) -> None:
        super().__init__()
        self.head_dim = WIDTH
        for letter in "qkvo":
            setattr(self, f"{letter}_proj", nn.Linear(HIDDEN, HIDDEN, bias=False))


def renamed(name: str, names: dict[str, str]) -> str:
    for ours, theirs in names.items():
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    return name


def rotary(base: float) -> tuple[Tensor, Tensor]:
    rates = base ** -(torch.arange(0, WIDTH, 2, device="cuda") / WIDTH)
    angle = torch.cat([torch.arange(LENGTH, device="cuda").unsqueeze(-1) * rates] * 2, -1).unsqueeze(0)
    return angle.cos(), angle.sin()


@pytest.mark.parametrize("name", ROWS)
@torch.no_grad()
def test_native_mixers_equal_flas_layers(name: str) -> None:
    layer_name, arguments, names = ROWS[name]
    torch.manual_seed(0)
    layer_class = getattr(importlib.import_module("fla.layers"), layer_name)
    layer = layer_class(hidden_size=HIDDEN, num_heads=HEADS, norm_eps=1e-5, layer_idx=0, **arguments)
    layer = layer.cuda().float().eval()
    # One layer alone has no lower bounds: they are zero in the first layer.
    mixer = make_mixer(name, Attention(), {"preset": "native"}, layer=0, norm_eps=1e-5, window=None)
    assert isinstance(mixer, RecurrentMixer)
    mixer.reset_parameters()
    mixer = mixer.cuda().eval()
    theirs = layer.state_dict()
    left = set(theirs)
    for ours, parameter in mixer.named_parameters():
        if ours == "lower_bounds":
            continue
        value = theirs[renamed(ours, names)] + 0.1 * torch.randn_like(parameter).reshape(
            theirs[renamed(ours, names)].shape
        )
        theirs[renamed(ours, names)].copy_(value)
        # k_proj of a mixer without keys computes the logits of 1 − α.
        sign = -1.0 if name == "hgrn2" and ours.startswith("k_proj") else 1.0
        parameter.copy_(sign * value.reshape(parameter.shape))
        left.discard(renamed(ours, names))
    assert not left
    x = torch.randn(2, LENGTH, HIDDEN, device="cuda")
    wanted = layer(x)
    wanted = wanted[0] if isinstance(wanted, tuple) else wanted
    found, _ = mixer(x, position_embeddings=rotary(10000.0))
    assert (found - wanted).norm() <= 1e-4 * wanted.norm()
