"""Constants and formulas of single mixers, as printed in their papers."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from evalsuite.foundation import ConfigError
from evalsuite.models.mixers import RecurrentMixer, make_mixer
from evalsuite.models.ops.recurrence import recurrence_matrix


class Attention(nn.Module):
    """Attention with `heads` heads of four channels."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.head_dim = 4
        for letter in "qkvo":
            setattr(self, f"{letter}_proj", nn.Linear(4 * heads, 4 * heads, bias=False))


def make(name: str, heads: int = 2, **options: Any) -> RecurrentMixer:
    torch.manual_seed(0)
    mixer = make_mixer(name, Attention(heads), options, layer=0, norm_eps=1e-6, window=None)
    assert isinstance(mixer, RecurrentMixer)
    mixer = mixer.double()
    mixer.reset_parameters()
    return mixer.requires_grad_(False)


@pytest.mark.parametrize("heads", [1, 4, 9, 16])
def test_retnet_decays_by_equation_8(heads: int) -> None:
    """arXiv 2307.08621, Eq. 8: γ = 1 − 2^(−5−h), so head 8 remembers 8,192 tokens."""
    gamma = make("retnet", heads).log_decay.exp()
    wanted = 1 - 2.0 ** (-5 - torch.arange(heads, dtype=torch.float64))
    torch.testing.assert_close(gamma, wanted, rtol=0, atol=1e-12)


def test_mamba2_does_not_normalize_b_and_c() -> None:
    """arXiv 2405.21060 and 2603.26556, Table 8: no QK normalization."""
    mixer = make("mamba2")
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    inputs = mixer.prepare(x).inputs
    lengths = inputs.q.norm(dim=-1)
    assert lengths.max() > 1.05 * lengths.min()


def test_metala_divides_the_log_decay_by_its_temperature() -> None:
    """arXiv 2411.10741 and its code: α = σ(W x)^(1/16), 1 − α is the key."""
    mixer = make("metala", short_conv=0)
    mixer.f_bias.zero_()
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    inputs = mixer.prepare(x).inputs
    logits = -mixer.split_heads(mixer.k_proj(x))
    assert inputs.log_decay is not None
    torch.testing.assert_close(inputs.log_decay, functional.logsigmoid(logits) / 16)
    torch.testing.assert_close(inputs.k, 1 - inputs.log_decay.exp())


def test_metala_starts_with_the_memories_of_the_other_mixers() -> None:
    mixer = make("metala", short_conv=0)
    mixer.k_proj.weight.zero_()
    inputs = mixer.prepare(torch.zeros(1, 1, 8, dtype=torch.float64)).inputs
    assert inputs.log_decay is not None
    decay = inputs.log_decay.exp()[0, 0, :, 0]
    torch.testing.assert_close(decay, torch.tensor([0.88, 0.999], dtype=torch.float64), rtol=0, atol=1e-6)


def test_a_signed_feature_map_has_no_normalizer() -> None:
    """A sum of signed weights may vanish, so that dividing by it would produce arbitrary outputs."""
    with pytest.raises(ConfigError, match=r"feature_map = 'identity'.*set normalizer: false"):
        make("linear_attention", feature_map="identity")
    make("linear_attention", feature_map="identity", normalizer=False)


def test_mesanet_with_a_large_ridge_is_gated_linear_attention() -> None:
    """arXiv 2506.05233: (H + Λ)⁻¹ q → Λ⁻¹ q. With a small Λ, a token that reads its key gets its value."""
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    layer = make("mesanet", lambda_init=1e8)
    weights, _ = layer.attention_matrix(x)
    solved = layer.prepare(x).inputs
    linear = replace(solved, q=functional.normalize(solved.q, dim=-1) * 1e-4)
    torch.testing.assert_close(weights, recurrence_matrix(linear), rtol=1e-3, atol=0)

    exact = make("mesanet", lambda_init=2e-8, lambda_lower_bound=1e-8, cg_steps=60)
    exact.q_proj.weight.copy_(exact.k_proj.weight)
    weights, _ = exact.attention_matrix(x[:, :3])
    torch.testing.assert_close(weights, torch.eye(3, dtype=x.dtype).expand(1, 2, 3, 3), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lambda_init": 0.2}, "lambda_lower_bound = 0.25, lambda_init = 0.2: need 0 <"),
        ({"cg_steps": 0}, "cg_steps = 0: must be 1 or more"),
        ({"qk_norm": "none"}, "qk_norm = 'none': conjugate gradients"),
    ],
)
def test_a_ridge_that_cannot_be_solved_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make("mesanet", **options)
